"""The nouns and the doors: plan data and the protocols between rooms. No behaviour."""
