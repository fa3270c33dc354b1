"""What a plan asks of a Spark session, and how the user wants Spark to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ematix_flow.declare.pipeline import Mover


@dataclass(frozen=True)
class SessionNeeds:
    """Jar families, settings and extensions that must be there before the session starts.

    Jars cannot be added once the JVM is up, so a process opens its session with the union over all of its plans:
    `needs_of_a | needs_of_b`.
    """

    jars: frozenset[str] = frozenset()
    conf: Mapping[str, str] = field(default_factory=dict)
    extensions: tuple[str, ...] = ()

    def __or__(self, other: SessionNeeds) -> SessionNeeds:
        """Everything both sides need; of two values for one setting the right side's wins."""
        return SessionNeeds(
            jars=self.jars | other.jars,
            conf={**self.conf, **other.conf},
            extensions=tuple(dict.fromkeys((*self.extensions, *other.extensions))),
        )


@dataclass(frozen=True)
class SparkSettings:
    """The user's `[spark]` section: where Spark runs and what to tell it.

    Attributes:
        master: A Spark master such as `local[4]` or `spark://host:7077`; `local[*]` when nothing is said.
        remote: A Spark Connect address such as `sc://host:15002`; it wins over `master`.
        conf: Plain Spark settings. They win over ours, except that list-valued ones are merged.
        driver_memory: Heap of the driver, such as `4g`.
        engine: `native` runs the same PySpark code on Sail in this process, without a JVM; `master` and `remote` then
            mean nothing.
        short_job: Trade peak speed for a quicker start; right for jobs of a few seconds. None: a command that has one
            job, and that a small one, does so.
        is_only_job: Whether the process ends after one job.
    """

    master: str | None = None
    remote: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    driver_memory: str | None = None
    engine: Mover = "spark"
    short_job: bool | None = None
    is_only_job: bool = False
