"""The one commit of a load into a lake table: what marks it, and settings that only its statement sees."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ematix_flow.contracts.plans import BatchPlan, OpenedRun, Statement

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_telling = threading.RLock()


@dataclass(frozen=True)
class Commit:
    """What marks a commit as a run's own: a number that grows with each run of the application, and the run.

    The pipeline and its logical run are told, too: the table then knows what it holds when the books are lost.
    """

    application: str
    number: int
    run_id: str
    pipeline: str = ""
    logical_run: str = ""


@dataclass(frozen=True)
class LoadCommit:
    """The one commit of a load: its statement, worked out for `version` of the table, and the mark it carries."""

    plan: BatchPlan
    run: OpenedRun
    statement: Statement
    mark: Commit
    version: int | None


@contextmanager
def told(spark: SparkSession, conf: Mapping[str, str]) -> Iterator[None]:
    """Settings for one statement; one that stayed behind would make other writes vanish without a word."""
    with _telling:  # several targets may be loaded side by side in one session
        before = {key: spark.conf.get(key, None) for key in conf}
        try:
            for key, value in conf.items():
                spark.conf.set(key, value)
            yield
        finally:
            for key, value_before in before.items():
                if value_before is None:
                    spark.conf.unset(key)
                else:
                    spark.conf.set(key, value_before)
