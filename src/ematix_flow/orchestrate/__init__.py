"""From due to done: what is due is claimed, run here or handed to where it will run, and seen through to its end."""
