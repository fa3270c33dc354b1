"""Deciding: pure functions from specs and described tables to plans. No clock, no network, no Spark."""
