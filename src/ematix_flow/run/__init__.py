"""Doing: one pipeline from start to end, the run log, and the route without Spark."""
