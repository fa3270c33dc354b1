"""Where rows are moved: the project's `[spark]`, then the environment, then the command line; the last one wins."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from ematix_flow.config.project import project_settings
from ematix_flow.contracts.session import SparkSettings
from ematix_flow.errors import InvalidConfig

_told: tuple[str | None, str | None] | None = None


def spark_settings() -> SparkSettings:
    """The settings of this process's session.

    `--spark-master` or `--spark-remote`, then `SPARK_REMOTE`, then `remote` and `master` of `[spark]`. Whoever names a
    place overrules all places that are named further back, whatever their kind.
    """
    settings = replace(project_settings().spark, is_only_job=_told is not None)
    if (told := os.environ.get("EMATIX_FLOW_SHORT_JOB", "").lower()) in ("true", "false"):
        settings = replace(settings, short_job=told == "true")
    master, remote = _told or (None, None)
    if master is not None:
        return replace(settings, master=master, remote=None)
    remote = remote or os.environ.get("SPARK_REMOTE") or settings.remote
    return replace(settings, remote=remote)


@contextmanager
def place_told(master: str | None = None, remote: str | None = None) -> Iterator[None]:
    """What a command was told: move rows there while the block runs, whatever the project and the environment say.

    Raises:
        InvalidConfig: both are given.
    """
    global _told
    if master is not None and remote is not None:
        raise InvalidConfig("--spark-master and --spark-remote name two places.", fix="give one of them")
    before, _told = _told, (master, remote)
    try:
        yield
    finally:
        _told = before
