"""Spark's Python workers on this machine come into the world ready."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from ematix_flow.spark import worker_daemon


def test_workers_have_what_they_need_and_read_no_archive_again(spark: SparkSession) -> None:
    def look(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        there = "pandas" in sys.modules
        for _ in batches:
            pass
        import gc

        archives = [path for path in sys.path if path.endswith((".zip", ".jar")) and "pyspark" in path]
        yield pa.RecordBatch.from_pydict(
            {"there": [there], "archives": [len(archives)], "kept": [gc.get_freeze_count()]}
        )

    (seen,) = spark.range(0, 10, 1, 1).mapInArrow(look, "there boolean, archives bigint, kept bigint").collect()
    assert seen.there and not seen.archives
    assert seen.kept > 50_000, "what was imported is left out of the collection after each task"


def test_a_worker_that_died_is_replaced(spark: SparkSession) -> None:
    def number(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        for _ in batches:
            pass
        yield pa.RecordBatch.from_pydict({"pid": [os.getpid()]})

    def workers() -> set[int]:
        return {row.pid for row in spark.range(0, 2, 1, 2).mapInArrow(number, "pid bigint").collect()}

    import os
    import signal

    first = workers()
    for pid in first:
        os.kill(pid, signal.SIGKILL)
    assert not first & workers()


def told(**more: Any) -> dict[str, str]:
    """The settings for workers of a session with these of its own."""
    return worker_daemon.settings({"spark.pyspark.python": sys.executable, **more})


def test_another_python_and_another_daemon_are_the_users_own_affair() -> None:
    daemon = "spark.python.daemon.module"
    assert told()[daemon] == "ematix_flow.spark.worker_daemon"
    assert daemon not in told(**{"spark.pyspark.python": "/opt/python/bin/python"})
    assert daemon not in told(**{daemon: "shop.daemon"})


def test_only_linux_forks_what_has_imported_so_much(monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "spark.python.daemon.module" not in told()


def test_folders_to_import_from_are_added_to_the_users(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    paths = told(**{"spark.executorEnv.PYTHONPATH": "/shop/lib"})["spark.executorEnv.PYTHONPATH"].split(":")
    assert str(tmp_path.resolve()) in paths
    assert paths[-1] == "/shop/lib"
