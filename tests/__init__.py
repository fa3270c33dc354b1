"""Tests mirror the source: one folder per room, real servers from `services/`."""
