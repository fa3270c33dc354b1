"""Names of workers: readable, different for every process, and telling whether the process is dead."""

from __future__ import annotations

import re

from ematix_flow.run.process import ProcessMark, this_process

_MARKED = re.compile(r"(?P<host>[^/]*)/(?P<pid>\d+)/(?P<started>[^/]*)/(?P<namespace>[^/]*)")


def worker_name() -> str:
    """The name under which this process claims work: host, process number, start, and the space of its number."""
    mark = this_process()
    return "/".join((mark.host, str(mark.pid), mark.started or "", mark.namespace or ""))


def spoken(worker_id: str | None) -> str:
    """A worker's name for people.

    >>> spoken("db1/4711/b742568f:1/pid:[4026531836]"), spoken("dispatched by db1/4711//"), spoken("night shift")
    ('process 4711 on db1', 'dispatched by process 4711 on db1', 'night shift')
    """
    words, _, name = (worker_id or "somebody").rpartition(" ")
    found = _MARKED.fullmatch(name)
    if found is None:
        return worker_id or "somebody"
    return f"{words} process {found['pid']} on {found['host']}".strip()


def is_dead(worker_id: str) -> bool:
    """Whether it is certain that the process of that name is gone. A name of another form, or host, is no certainty."""
    found = _MARKED.fullmatch(worker_id)
    if found is None:
        return False
    return ProcessMark(found["host"], int(found["pid"]), found["started"] or None, found["namespace"] or None).is_dead
