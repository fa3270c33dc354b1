"""How large this machine is, and what follows from it for a session of its own."""

from __future__ import annotations

import contextlib
import math
import os
import re
from pathlib import Path

from ematix_flow.errors import InvalidConfig

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
_PART_BYTES = 64 * 1024 * 1024
_SMALLEST_HEAP_MB, _HEAP_MB, _TASK_MB = 512, 2048, 512
"""The smallest heap that Java is given, what it gets where there is enough, and the share of each task in it."""


def local_sizes(master: str, cores: int, memory_mb: int) -> dict[str, str]:
    """Settings of a session on this machine that follow from its size."""
    tasks = cores_of(master, cores)
    heap_mb = heap_mb_for(tasks, memory_mb)
    return {
        SHUFFLE_PARTITIONS: str(shuffle_partitions(tasks, 0)),
        "spark.driver.memory": f"{heap_mb}m",
        # Small partitions are joined by hashing instead of sorting both sides. A hash table cannot be put on disk, so
        # one may take so little that the tables of all tasks and joins of a stage fit together.
        "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": f"{max(heap_mb // (64 * max(tasks, 4)), 1)}m",
    }


def heap_mb_for(tasks: int, memory_mb: int) -> int:
    """Java's heap: a share for every task that runs at once, and no more than half of the machine.

    >>> [heap_mb_for(tasks, 65_536) for tasks in (1, 4, 16, 64, 128)], heap_mb_for(16, 3_000), heap_mb_for(2, 900)
    ([2048, 2048, 8192, 32768, 32768], 1500, 512)
    """
    return max(_SMALLEST_HEAP_MB, min(max(_HEAP_MB, _TASK_MB * tasks), memory_mb // 2))


def shuffle_partitions(cores: int, read_bytes: int) -> int:
    """Into how many parts a job of that size is shuffled: few, but none that needs more memory than there is for it.

    Spark's 200 cost a small job more than its work; what is small enough is put together while it runs.

    >>> shuffle_partitions(2, 1_000_000), shuffle_partitions(2, 10_000_000_000), shuffle_partitions(64, 10_000_000_000)
    (4, 150, 150)
    """
    return max(2 * cores, math.ceil(read_bytes / _PART_BYTES))


def tasks_here(master: str, parts: str | None) -> int | None:
    """The tasks that run at once on a local master; None when the user has chosen the parts of shuffles."""
    cores = cores_of(master, processors())
    return cores if parts == str(shuffle_partitions(cores, 0)) else None


def cores_of(master: str, cores: int) -> int:
    """The number of tasks that run at once on a local master.

    >>> cores_of("local[4]", 2), cores_of("local[*]", 8), cores_of("local", 8), cores_of("local[2, 3]", 8)
    (4, 8, 1, 2)
    """
    if not master.startswith("local"):
        return cores
    inside = re.fullmatch(r"local(?:\[\s*(\*|\d+)\s*(?:,\s*\d+\s*)?\])?", master)
    if inside is None:
        raise InvalidConfig(f"'{master}' is no Spark master.", fix="local[*], local[4], spark://host:7077, yarn, …")
    return cores if inside[1] == "*" else int(inside[1] or 1)


def processors() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_mb_of_machine() -> int:
    """Memory of this machine, or of the container around us; 4 GiB where nobody says."""
    sizes = []
    try:
        sizes.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        sizes.append(4 << 30)
    with contextlib.suppress(OSError, ValueError):  # no container, or "max"
        sizes.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return min(sizes) >> 20
