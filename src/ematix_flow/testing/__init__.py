"""Helpers for tests of pipelines and backends, shipped with the package."""
