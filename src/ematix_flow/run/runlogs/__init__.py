"""Where run records are kept: one file per kind of store, and `open.py`, which chooses by URL and may fail softly."""
