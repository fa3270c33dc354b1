"""What stands between a stream's sources and its targets, made from its declaration without starting anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ematix_flow.config.resolve import resolve
from ematix_flow.config.stream_ready import check_stream
from ematix_flow.contracts.streams import EVENT_TIME
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.run.dead_letters import keeps_letters

if TYPE_CHECKING:
    from ematix_flow.spark.stream_sql import StreamSql


def ready_to_start(spec: StreamSpec) -> StreamSpec:
    """The stream with its connections, after every check that needs no other system.

    Raises:
        FlowError: it is declared wrongly, or names what nobody knows.
    """
    ready = spec.with_connections(lambda ref: resolve(ref, where=str(spec.where)).connection)
    check_stream(ready)
    ready.check_own_aggregates()
    return ready


def sql_of(spec: StreamSpec) -> StreamSql | None:
    """`transform_sql`, parsed; None when there is none. Spark is not started.

    Raises:
        InvalidSource: it is not one SELECT over what it may name, or says more than a window can stand behind.
        InvalidPlan: a function is called with too few or too many arguments.
    """
    if spec.transform_sql is None:
        return None
    from ematix_flow.spark.stream_sql import StreamSql

    functions = None
    if spec.udfs or spec.aggregate_udfs:
        from ematix_flow.spark.functions import SqlFunctions

        functions = SqlFunctions(spec.udfs, spec.aggregate_udfs)
    return StreamSql(spec.transform_sql, spec.dialect, tuple(spec.lookups), functions, _carried(spec))


def _carried(spec: StreamSpec) -> tuple[str, ...] | None:
    """What goes through SQL in front of a window: the event time of brokers, and messages that may be late."""
    if spec.window is None:
        return None
    event_time = spec.window.event_time_column
    carried = [event_time] if event_time == EVENT_TIME else []
    if keeps_letters(spec) or spec.transform_on_error == "drop":
        from ematix_flow.spark.payloads import MESSAGE, RAW

        carried += [RAW, MESSAGE]
    return tuple(carried)
