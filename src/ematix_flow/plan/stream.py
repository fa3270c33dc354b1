"""What a stream can promise, and what it must remember: decided before anything starts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ematix_flow.contracts.streams import Delivery
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.stream import Join, Window
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.errors import DeliveryImpossible

REPLAYS = (
    *("kafka", "kinesis", "delta_local", "delta_s3", "iceberg"),
    *("object_store_local", "object_store_s3", "object_store_gcs", "object_store_azure"),
    *("postgres", "mysql"),  # whose logs give changes again
)
"""Sources that give the same messages again for the same positions."""

KEEPS_NAMES = (
    *("postgres", "mysql", "sqlite", "duckdb"),
    *("delta_local", "delta_s3", "iceberg"),
    *("object_store_local", "object_store_s3", "object_store_gcs", "object_store_azure"),
    "kafka",
)
"""Targets that keep a batch's name together with its rows, so that it cannot be applied twice."""

_MADE_OF = "; made of rows "
"""What stands in a shape before where remembered rows came from; checkpoints of earlier versions do not say it."""

_QUOTED_OR_SPACE = re.compile(r"""('(?:[^']|'')*'|"[^"]*"|`[^`]*`)|\s+""")


@dataclass(frozen=True)
class StreamPlan:
    """A stream, decided.

    Attributes:
        delivery: What it promises.
        reason: Why not more, in words; empty when it promises everything.
        shape: What its checkpoint remembers; a checkpoint of another shape is of no use to it.
    """

    delivery: Delivery
    reason: str
    shape: str


def plan_stream(spec: StreamSpec) -> StreamPlan:
    """Decide. Every connection of the spec is an instance (`StreamSpec.with_connections`).

    Raises:
        DeliveryImpossible: it is told to deliver exactly once and cannot; lists every reason.
    """
    against = against_exactly_once(spec)
    if spec.delivery == "exactly_once" and against:
        lines = "\n".join(f"  - {reason}" for reason in against)
        raise DeliveryImpossible(
            f"Stream '{spec.name}' cannot deliver exactly once:\n{lines}",
            where=str(spec.where),
            fix="change what stands against it, or use delivery='at_least_once'",
        )
    exactly = not against and spec.delivery != "at_least_once"
    return StreamPlan(
        delivery="exactly_once" if exactly else "at_least_once",
        reason="" if exactly else "; ".join(against) or "as declared",
        shape=shape_of(spec),
    )


def against_exactly_once(spec: StreamSpec) -> Sequence[str]:
    """What stands against delivering exactly once; nothing, if it can."""
    found = []
    for source in spec.sources:
        if _kind(source.connection) not in REPLAYS:
            found.append(f"source '{source.query}': {_kind(source.connection)} may deliver a message twice")
    for target in spec.targets:
        if _kind(target.connection) not in KEEPS_NAMES:
            found.append(f"{_kind(target.connection)} cannot keep the name of a batch together with its rows")
    return found


def shape_of(spec: StreamSpec) -> str:
    """What a checkpoint of this stream remembers: positions in its sources, in their order, and what windows or a join
    keep of rows."""
    sources = ", ".join(f"{_kind(source.connection)}:{source.query}" for source in spec.sources)
    if spec.window is not None:
        by = "by arrival" if spec.window.time_mode == "processing" else f"by {spec.window.event_time_column}"
        return f"{sources}; {_window_shape(spec.window)}{_MADE_OF}{by}{_sql_shape(spec)}"
    if spec.join is not None:
        return f"{sources}; {_join_shape(spec.join)}{_MADE_OF}by {spec.join.event_time_column}"
    return sources


def is_of_shape(remembered: str, shape: str) -> bool:
    """Whether a stream of a shape can go on with what is remembered.

    A checkpoint of an earlier version does not say which rows it was made of, and is compared on what it says.

    >>> is_of_shape("kafka:a; tumbling window", "kafka:a; tumbling window; made of rows by at")
    True
    >>> is_of_shape("kafka:a; tumbling window; made of rows by at", "kafka:a; tumbling window; made of rows by seen_at")
    False
    """
    return remembered in (shape, shape.rpartition(_MADE_OF)[0])


def _sql_shape(spec: StreamSpec) -> str:
    """The SQL in front of a window as a short name, which does not change with how it is laid out.

    Two parts of one window that were made by different SQL are numbers of different things, which nobody could tell
    from the sum.
    """
    if spec.transform_sql is None:
        return ""
    laid_out = _QUOTED_OR_SPACE.sub(lambda found: found[1] or " ", spec.transform_sql.strip())
    return f", after transform_sql {hashlib.sha256(f'{spec.dialect} {laid_out}'.encode()).hexdigest()[:8]}"


def _window_shape(window: Window) -> str:
    """What of a window decides how its parts look; how long it waits, and what the columns are called, may change."""
    lengths = [f"{n}={v}" for n in ("duration_ms", "hop_ms", "gap_ms") if (v := getattr(window, n))]
    made = [
        f"{one.agg}({', '.join(one.columns or ()) or one.column or ''}{', exact' if one.mode == 'exact' else ''})"
        for one in window.aggregations
    ]
    groups = f" by {', '.join(window.group_by)}" if window.group_by else ""
    return f"{window.kind} window {' '.join(lengths)}{groups}: {', '.join(made)}"


def _join_shape(join: Join) -> str:
    keys = " and ".join(f"{one} = {other}" for one, other in zip(join.left_keys, join.right_keys, strict=True))
    kind = "inner" if join.kind == "stream_stream_join" else join.kind
    return f"{kind} join of {join.left_source} and {join.right_source} on {keys}"


def _kind(connection: object) -> str:
    assert isinstance(connection, Connection)
    return connection.kind
