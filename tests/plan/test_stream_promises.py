"""What a stream can promise between two systems, and which of its checkpoints it can go on with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import KafkaConnection, RabbitMQConnection
from ematix_flow.connections import (
    ObjectStoreAzureConnection,
    ObjectStoreGcsConnection,
    ObjectStoreLocalConnection,
    ObjectStoreS3Connection,
)
from ematix_flow.declare.connection import Connection
from ematix_flow.declare.registry import user_location
from ematix_flow.declare.stream import Aggregation, Join, Source, StateStore, Window
from ematix_flow.declare.stream_spec import StreamSpec
from ematix_flow.declare.target import Target
from ematix_flow.errors import StateIncompatible
from ematix_flow.plan.stream import is_of_shape, plan_stream
from ematix_flow.spark.checkpoints import CheckpointFolder

STORES = (
    ObjectStoreLocalConnection(name="files", path="lake", format="csv"),
    ObjectStoreS3Connection(
        name="files",
        endpoint="http://h",
        bucket="lake",
        region="r",
        access_key_id="k",
        secret_access_key="s",
        format="csv",
    ),
    ObjectStoreGcsConnection(name="files", bucket="lake", format="csv"),
    ObjectStoreAzureConnection(name="files", account="shop", account_key="c2VjcmV0", container="lake", format="csv"),
)
BROKER = KafkaConnection(name="broker", bootstrap_servers="h:9092", group_id="g")


def promised(source: Connection, target: Target) -> str:
    spec = StreamSpec(name="promise", where=user_location(), sources=(Source(source, "events"),), targets=(target,))
    return plan_stream(spec).delivery


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.kind)
def test_every_store_of_files_gives_and_takes_rows_exactly_once(store: Connection) -> None:
    assert promised(store, Target(connection=BROKER, topic="events")) == "exactly_once"
    assert promised(BROKER, Target(connection=store, prefix="events")) == "exactly_once"


def test_a_queue_does_not() -> None:
    queue = RabbitMQConnection(name="queue", amqp_url="amqp://h")
    assert promised(queue, Target(connection=BROKER, topic="events")) == "at_least_once"
    assert promised(BROKER, Target(connection=queue, queue="events")) == "at_least_once"


MINUTES = StreamSpec(
    name="minutes",
    where=user_location(),
    sources=(Source(BROKER, "events"),),
    targets=(Target(connection=BROKER, topic="per_minute"),),
    transform_sql="SELECT shop, 'a b' AS word FROM source",
    window=Window("tumbling", [Aggregation("sum", "total", "amount")], duration_ms=60_000, event_time_column="at"),
)
JOINED = StreamSpec(
    name="joined",
    where=user_location(),
    sources=(Source(BROKER, "orders"), Source(BROKER, "payments")),
    targets=MINUTES.targets,
    join=Join("orders", "payments", ["id"], ["id"], time_window_ms=5_000, event_time_column="at"),
    state_store=StateStore("rocksdb"),
)


def of_window(**changes: Any) -> StreamSpec:
    assert MINUTES.window is not None
    return replace(MINUTES, window=replace(MINUTES.window, **changes))


@pytest.mark.parametrize(
    "changed",
    [
        of_window(event_time_column="seen_at"),
        of_window(time_mode="processing"),
        replace(MINUTES, transform_sql="SELECT shop, 'a  b' AS word FROM source"),
        replace(MINUTES, transform_sql=None),
        replace(MINUTES, dialect="spark"),
    ],
)
def test_parts_of_windows_that_were_made_of_other_rows_are_not_mixed(changed: StreamSpec) -> None:
    assert not is_of_shape(plan_stream(MINUTES).shape, plan_stream(changed).shape)


def test_rows_of_a_join_that_were_kept_by_another_event_time_are_not_mixed() -> None:
    assert JOINED.join is not None
    changed = replace(JOINED, join=replace(JOINED.join, event_time_column="seen_at"))
    assert not is_of_shape(plan_stream(JOINED).shape, plan_stream(changed).shape)


def test_sql_that_is_laid_out_anew_and_columns_that_are_named_anew_change_nothing() -> None:
    laid_out = replace(
        of_window(window_start_column="begin"),
        transform_sql="""
        SELECT shop,
               'a b' AS word
        FROM source
    """,
    )
    assert is_of_shape(plan_stream(MINUTES).shape, plan_stream(laid_out).shape)


@pytest.mark.parametrize("spec", [MINUTES, JOINED], ids=lambda spec: spec.name)
def test_a_checkpoint_that_does_not_say_what_it_is_made_of_is_gone_on_with_and_says_it_from_then_on(
    spec: StreamSpec, tmp_path: Path
) -> None:
    shape = plan_stream(spec).shape
    folder = CheckpointFolder(spec.name, str(tmp_path))
    begun = folder.begin(shape.partition("; made of")[0], {"events": 7})
    folder.require_shape(begun, shape)
    found = folder.current()
    assert found is not None and (found.name, found.start, found.shape) == (begun.name, {"events": 7}, shape)
    with pytest.raises(StateIncompatible, match="by at.*by seen_at"):
        folder.require_shape(found, shape.replace("by at", "by seen_at"))
