"""Run logs: one file per kind of store, what databases share in `sql….py`, and `open.py`, which may fail softly."""
