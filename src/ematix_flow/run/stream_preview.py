"""What a stream would do, without doing it: what it promises, what it remembers and how, where its checkpoint is."""

from __future__ import annotations

from typing import Any

from ematix_flow.config.stream_ready import stream_advice
from ematix_flow.declare.stream import Lookup
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.plan.stream import plan_stream
from ematix_flow.run.places import needing_spark
from ematix_flow.run.stream_transform import ready_to_start, sql_of


def preview_stream(spec: StreamSpec) -> dict[str, Any]:
    """A stream as it is decided before it starts. Nothing connects, and Spark is not started.

    Raises:
        FlowError: it is declared wrongly, its SQL included, or cannot promise what it is told to.
    """
    with needing_spark("A stream's checkpoint is looked at with Spark's types"):
        from ematix_flow.spark.checkpoints import CheckpointFolder
    ready = ready_to_start(spec)
    plan = plan_stream(ready)
    sql_of(ready)
    return {
        "pipeline": spec.name,
        "sources": [f"{source.connection.kind}: {source.query}" for source in ready.sources],  # type: ignore[union-attr]
        "steps": described_steps(ready),
        "targets": [_target(target) for target in ready.targets],
        "delivery": plan.delivery,
        "delivery_reason": plan.reason or None,
        "remembers": plan.shape,
        "checkpoint": CheckpointFolder.of(ready).place,
        "advice": list(stream_advice(ready)),
    }


def described_steps(spec: StreamSpec) -> list[str]:
    """What happens to a batch, in order, and by what."""
    steps = []
    if spec.cdc is not None:
        steps.append(
            f"changes ({spec.cdc.envelope}): the net change of each key, by Spark; applied once by its position"
        )
    if spec.transform_sql is not None:
        steps += [_lookup(name, lookup) for name, lookup in spec.lookups.items()]
        steps += [f"function {one.name}: Python, over Arrow arrays of each batch" for one in spec.udfs]
        steps.append("transform_sql: over each batch, by Spark SQL")
    steps += [f"aggregate {one.name}: Python, in parts that are merged" for one in spec.aggregate_udfs]
    if spec.window is not None:
        kept = "open sessions" if spec.window.kind == "session" else "one part per batch, window and group"
        steps.append(
            f"{spec.window.kind} window: Spark's aggregation over each batch; remembers {kept}; "
            f"late rows: {spec.window.late_data}"
        )
    if spec.join is not None:
        steps.append(
            f"{spec.join.kind} join: Spark's join of each batch with the rows that may still match; "
            f"remembers these rows; late rows: {spec.join.late_data}"
        )
    return steps or ["none: rows go to their targets as they are read"]


def _lookup(name: str, lookup: Lookup) -> str:
    connection: Any = lookup.connection
    place = "a query" if lookup.table is None else ".".join(filter(None, (lookup.schema, lookup.table)))
    every = lookup.refresh_interval_ms
    again = f", and again every {every:,} ms" if every else ""
    return f"lookup {name}: {place} of {connection.kind}, read when the stream starts{again}"


def _target(target: Any) -> str:
    place = target.table if isinstance(target.table, str) else ".".join(map(str, target.table or ())) or ""
    if isinstance(target.table, type):
        place = target.table.__name__
    return f"{target.connection.kind}: {place or target.topic or target.queue or target.prefix or ''}".rstrip(": ")


def render_stream(facts: dict[str, Any]) -> str:
    """The preview for people."""
    lines = [f"stream {facts['pipeline']}"]
    for label, name in (("from", "sources"), ("does", "steps"), ("into", "targets")):
        lines += [f"  {label:<12}{value}" for value in facts[name]]
    why = f" ({facts['delivery_reason']})" if facts["delivery_reason"] else ""
    lines.append(f"  {'delivers':<12}{facts['delivery'].replace('_', ' ')}{why}")
    lines.append(f"  {'remembers':<12}{facts['remembers']}")
    lines.append(f"  {'in':<12}{facts['checkpoint']}")
    lines += [f"  {'note':<12}{word}" for word in facts["advice"]]
    return "\n".join(lines)
