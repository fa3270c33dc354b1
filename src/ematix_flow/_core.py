"""Clients for notebooks, under the import path that documents promise: a database by its URL, and message brokers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.kafka_notebook import KafkaBackend
from ematix_flow.backends.kinesis_notebook import KinesisBackend
from ematix_flow.backends.notebook import ArrowBatchIter
from ematix_flow.backends.pubsub_notebook import PubSubBackend
from ematix_flow.backends.rabbitmq_notebook import RabbitMQBackend
from ematix_flow.declare.stream_pipeline import run_pipeline
from ematix_flow.declare.udf import PythonAggregateUdfHandle, PythonScalarUdfHandle

if TYPE_CHECKING:
    from ematix_flow.config.handles import ConnectionHandle
    from ematix_flow.contracts.dead_letters import KeepsDeadLetters

__all__ = [
    "ArrowBatchIter",
    "KafkaBackend",
    "KinesisBackend",
    "PubSubBackend",
    "PythonAggregateUdfHandle",
    "PythonScalarUdfHandle",
    "RabbitMQBackend",
    "connect",
    "core_version",
    "dlq_park",
    "dlq_purge",
    "dlq_record_by_id",
    "dlq_records",
    "dlq_replay",
    "dlq_stats",
    "run_pipeline_from_path",
    "run_pipeline_from_toml_str",
    "stream_rewind",
]


def connect(url: str) -> ConnectionHandle:
    """Open a database by its URL; the same as `ematix_flow.config.connect(url=url)`."""
    from ematix_flow.config.handles import connect as open_handle

    return open_handle(url=url)


def core_version() -> str:
    """The version of this package."""
    from ematix_flow import __version__

    return __version__


def run_pipeline_from_toml_str(
    toml: str,
    metrics_port: int | None = None,
    udfs: Sequence[Any] | None = None,
    aggregate_udfs: Sequence[Any] | None = None,
    *,
    once: bool = False,
) -> dict[str, Any]:
    """Run the stream that a TOML text describes; the same as `run_pipeline(config_str=…)`."""
    return run_pipeline(config_str=toml, metrics_port=metrics_port, udfs=udfs, aggregate_udfs=aggregate_udfs, once=once)


def run_pipeline_from_path(
    path: str,
    metrics_port: int | None = None,
    udfs: Sequence[Any] | None = None,
    aggregate_udfs: Sequence[Any] | None = None,
    *,
    once: bool = False,
) -> dict[str, Any]:
    """Run the stream that a TOML file describes; the same as `run_pipeline(path)`."""
    return run_pipeline(path, metrics_port=metrics_port, udfs=udfs, aggregate_udfs=aggregate_udfs, once=once)


def stream_rewind(toml: str, target_json: str, confirm_state_reset: bool = False) -> dict[str, Any]:
    """Send the stream that a TOML document describes to another place; it must not run.

    Args:
        target_json: `{"kind": "timestamp", "ms": …}`, `{"kind": "offset", "bytes": […]}`, `{"kind": "earliest"}` or
            `{"kind": "latest"}`.
        confirm_state_reset: Needed where windows or joins would forget what they have gathered.

    Returns:
        `sources`, pairs of query and position; `state_cleared`.
    """
    from ematix_flow.config.stream_toml import read_stream_toml
    from ematix_flow.run.stream_state import stream_rewind as rewind

    return rewind(read_stream_toml(toml), target_json, confirm_state_reset)


# ── dead letters ─────────────────────────────────────────────────────────────────────────────────────────────────────


def dlq_stats(toml: str, now_ms: int) -> dict[str, Any]:
    """How many dead letters a stream has: `pending`, `parked`, `by_stage`, `arrivals`, `scanned`, `truncated`."""
    with _letters(toml) as keeper:
        return keeper.stats(now_ms).to_dict()


def dlq_records(toml: str, status: str | None = None, page: int = 0, page_size: int = 50) -> list[dict[str, Any]]:
    """One page of a stream's dead letters, oldest first; payloads as bytes."""
    from ematix_flow.contracts.dead_letters import check_page

    known = check_page(status, page, page_size)
    with _letters(toml) as keeper:
        return [letter.to_dict() for letter in keeper.records(known, page, page_size)]


def dlq_record_by_id(toml: str, record_id: str) -> dict[str, Any] | None:
    """One dead letter; None when there is none with this id."""
    with _letters(toml) as keeper:
        letter = keeper.by_id(record_id)
        return None if letter is None else letter.to_dict()


def dlq_replay(toml: str, selection_json: str, max_attempts: int | None = None) -> dict[str, int]:
    """Send dead letters through their stream again, each once.

    Args:
        selection_json: `{"kind": "all"}`, `{"kind": "first_n", "n": …}` or `{"kind": "ids", "ids": […]}`.
        max_attempts: Instead of `dlq_max_attempts`.

    Returns:
        `taken`, `succeeded`, `redeadlettered`, `parked`, `started_at_ms`, `finished_at_ms`.
    """
    from ematix_flow.config.stream_toml import read_stream_toml
    from ematix_flow.contracts.dead_letters import Selection
    from ematix_flow.run.dead_letter_replay import replay

    selection = Selection.of(selection_json)
    return replay(read_stream_toml(toml), selection, max_attempts=max_attempts).to_dict()


def dlq_park(toml: str, selection_json: str) -> int:
    """Set dead letters aside, so that replays leave them; how many."""
    from ematix_flow.contracts.dead_letters import Selection

    selection = Selection.of(selection_json)
    with _letters(toml) as keeper:
        return keeper.park(selection, now_ms=_now_ms())


def dlq_purge(toml: str, selection_json: str) -> int:
    """Remove dead letters for good; how many."""
    from ematix_flow.contracts.dead_letters import Selection

    selection = Selection.of(selection_json)
    with _letters(toml) as keeper:
        return keeper.purge(selection, now_ms=_now_ms())


@contextmanager
def _letters(toml: str) -> Iterator[KeepsDeadLetters]:
    from ematix_flow.config.stream_toml import read_stream_toml
    from ematix_flow.run.dead_letter_replay import opened

    with opened(read_stream_toml(toml)) as (_, keeper):
        yield keeper


def _now_ms() -> int:
    return int(time.time() * 1000)
