"""Dependencies and workflows as they are declared: names, references, and the check of the whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ematix_flow import AllOf, AnyOf, BigInt, RabbitMQConnection, Target, ematix, pipeline, register_connection
from ematix_flow.config.loader import load_module, load_modules
from ematix_flow.declare import registry
from ematix_flow.declare.dependencies import check_graph
from ematix_flow.errors import DeclarationError, InvalidDeclaration, WrongDeclarationType
from ematix_flow.run.registered import Orchestrated, orchestrated


@pytest.fixture(autouse=True)
def own_registry() -> Iterator[None]:
    """What one test declares, the next one must not see."""
    with registry.isolated():
        yield


def declare(name: str, **options: Any):
    """A bare pipeline."""

    def body() -> dict[str, str]:
        return {"ran": name}

    body.__qualname__ = name
    return pipeline.register(name=name, **{"schedule": None, **options})(body)


def known() -> dict[str, Orchestrated]:
    return {entry.name: entry for entry in orchestrated()}


# ── dependencies ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_upstreams_are_names_declared_pipelines_and_registered_functions() -> None:
    raw = declare("raw")

    @ematix.pipeline(target=Orders, target_connection="db", mode="append", depends_on=raw)
    def orders(conn):
        return "SELECT 1"

    declare("report", depends_on=[orders, "raw", raw])
    assert pipeline.depends_on_of("orders") == ("raw",)
    assert pipeline.depends_on_of("report") == ("orders", "raw")
    assert pipeline.order_for_run_due(["report", "orders", "raw"]) == ["raw", "orders", "report"]


def test_conditions_are_for_workflows() -> None:
    with pytest.raises(WrongDeclarationType, match=r"AnyOf\('raw', 'bills'\)") as refused:
        declare("report", depends_on=AnyOf("raw", "bills"))
    assert "triggered_by=" in str(refused.value.fix)


def test_a_function_that_nobody_registered_is_no_upstream() -> None:
    with pytest.raises(WrongDeclarationType, match="depends_on"):
        declare("report", depends_on=[lambda: None])
    with pytest.raises(WrongDeclarationType, match="depends_on"):
        declare("report", depends_on=[3])


def test_an_upstream_may_be_declared_later() -> None:
    declare("report", depends_on=["raw"])
    declare("raw")
    check_graph()


def test_a_pipeline_that_waits_for_itself_is_not_registered() -> None:
    with pytest.raises(InvalidDeclaration, match="'a' waits for itself.*cycle.*a → a"):
        declare("a", depends_on=["a"])
    assert pipeline.list_pipelines() == []


def test_the_pipeline_that_closes_a_cycle_is_not_registered() -> None:
    declare("a", depends_on=["b"])
    declare("b", depends_on=["c"])
    with pytest.raises(InvalidDeclaration, match="cycle: c → a → b → c") as caught:
        declare("c", depends_on=["a"])
    assert isinstance(caught.value, ValueError)
    assert [one.name for one in pipeline.list_pipelines()] == ["a", "b"]


def test_a_name_that_nothing_declares_is_an_error_with_both_names_and_the_nearest() -> None:
    declare("ingest_orders")
    declare("report", depends_on=["ingest_order"])
    with pytest.raises(InvalidDeclaration, match="'report' depends on 'ingest_order'") as caught:
        check_graph()
    assert caught.value.fix == "did you mean 'ingest_orders'?"
    assert "test_workflow.py" in str(caught.value)


MODULE = """
from ematix_flow import pipeline

@pipeline.register(name="{name}", schedule=None, depends_on={upstreams})
def body():
    return {{}}
"""


def test_a_module_whose_graph_does_not_hold_is_not_loaded(tmp_project: Path) -> None:
    (tmp_project / "half_a_graph.py").write_text(MODULE.format(name="half", upstreams=["other_half"]))
    for _ in range(2):  # the second time Python has it already
        with pytest.raises(InvalidDeclaration, match="'half' depends on 'other_half'") as caught:
            load_module("half_a_graph")
        assert "half_a_graph.py:" in str(caught.value.where)


def test_pipelines_of_several_modules_may_wait_for_each_other(tmp_project: Path) -> None:
    (tmp_project / "graph_east.py").write_text(MODULE.format(name="east", upstreams=["west"]))
    (tmp_project / "graph_west.py").write_text(MODULE.format(name="west", upstreams=[]))
    load_modules(["graph_east", "graph_west"])
    assert pipeline.order_for_run_due(["east", "west"]) == ["west", "east"]


# ── what is kept ─────────────────────────────────────────────────────────────────────────────────────────────────────


@ematix.table(schema="main")
class Orders:
    id: BigInt


def test_everything_that_is_declared_reaches_the_orchestrator() -> None:
    declare("raw")
    declare(
        "report",
        schedule="30 2 * * *",
        timezone="Europe/Berlin",
        depends_on=["raw"],
        upstream_freshness_secs=3600,
        retry={"max_attempts": 3},
        catchup="all",
        max_catchup=7,
        repeated_hour="twice",
        missing_hour="skip",
        idempotent=True,
        priority=5,
        concurrency_group="warehouse",
    )
    report = known()["report"]
    assert report.due is not None
    assert (report.due.catchup, report.due.max_catchup) == ("all", 7)
    assert (report.due.schedule.expression, report.due.schedule.timezone) == ("30 2 * * *", "Europe/Berlin")
    assert (report.due.schedule.repeated_hour, report.due.schedule.missing_hour) == ("twice", "skip")
    assert (report.upstreams, report.freshness_s, report.retry.max_attempts) == (("raw",), 3600, 3)
    assert (report.is_repeatable, report.priority, report.concurrency_group) == (True, 5, "warehouse")
    assert report.thing() == {"ran": "report"}
    assert pipeline.retry_policy_of("report").explicit and not pipeline.retry_policy_of("raw").explicit
    assert pipeline.upstream_freshness_secs_of("report") == 3600
    scheduled = pipeline.list_pipelines()[1]
    assert (scheduled.name, scheduled.schedule, scheduled.timezone) == ("report", "30 2 * * *", "Europe/Berlin")


def test_the_decorator_takes_the_same_keywords_and_job_is_the_same() -> None:
    @ematix.job(target=Orders, target_connection="db", mode="append", schedule="@daily", catchup="latest", priority=2)
    def orders(conn):
        return "SELECT 1"

    found = known()["orders"]
    assert found.due is not None and found.due.catchup == "latest" and found.priority == 2
    assert orders.spec.catchup == "latest" and orders.spec.max_catchup == 100


def test_a_load_may_be_repeated_where_the_target_knows_its_runs_and_a_bare_function_may_not() -> None:
    @ematix.connection
    class queue:
        kind = "rabbitmq"
        amqp_url = "amqp://localhost"

    options: dict[str, Any] = {"target": Orders, "mode": "append"}
    ematix.pipeline(target_connection="db", name="to_db", **options)(lambda conn: "SELECT 1")
    ematix.pipeline(target_connection="db", name="said_not", idempotent=False, **options)(lambda conn: "SELECT 1")
    ematix.pipeline(target_connection="queue", name="to_queue", **options)(lambda conn: "SELECT 1")
    declare("bare")
    declare("said_so", idempotent=True)
    repeatable = {name for name, entry in known().items() if entry.is_repeatable}
    assert repeatable == {"to_db", "said_so"}


def test_a_broker_that_only_a_file_names_is_one_whose_messages_may_not_be_sent_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".ematix-flow.toml").write_text(
        '[connections.queue]\nkind = "rabbitmq"\namqp_url = "${NOT_HERE}"\n'
        '[connections.bus]\nkind = "${BUS_KIND}"\nproject_id = "shop"\n'
        '[connections.unsaid]\nkind = "${NOT_HERE}"\n'
        '[connections.db]\nkind = "sqlite"\npath = "shop.db"\n'
        '[connections.moved]\nkind = "kinesis"\nstream_name = "orders"\nregion = "eu-west-1"\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BUS_KIND", "pubsub")
    monkeypatch.setenv("EMATIX_FLOW_DSN_BOUGHT", "postgresql://u@h/d")

    @ematix.connection
    class moved:
        kind = "sqlite"
        path = "shop.db"

    for connection in ("queue", "bus", "unsaid", "db", "moved", "bought"):
        ematix.pipeline(target=Orders, mode="append", target_connection=connection, name=f"to_{connection}")(
            lambda conn: "SELECT 1"
        )

    @ematix.table(schema="main")
    class Sent:
        id: BigInt

    both = [Target(table=Orders, connection="db"), Target(table=Sent, connection="queue")]
    ematix.pipeline(targets=both, mode="append", source_connection="db", name="to_both")(lambda conn: "SELECT 1")
    assert {name for name, entry in known().items() if entry.is_repeatable} == {"to_db", "to_bought"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"schedule": "every day"}, "'every day' is not a cron expression"),
        ({"schedule": "@daily", "timezone": "Mars/Olympus"}, "Mars/Olympus"),
        ({"catchup": "some"}, "catchup"),
        ({"max_catchup": 0}, "max_catchup"),
        ({"repeated_hour": "thrice"}, "repeated_hour"),
        ({"missing_hour": "wait"}, "missing_hour"),
        ({"priority": 1.5}, "priority"),
        ({"upstream_freshness_secs": -1}, "upstream_freshness_secs"),
        ({"idempotent": "yes"}, "idempotent"),
        ({"concurrency_group": ""}, "concurrency_group"),
        ({"retry": {"max_attempts": 0}}, "max_attempts"),
        ({"retry": 3}, "retry"),
    ],
)
def test_what_cannot_be_orchestrated_is_refused_where_it_is_written(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DeclarationError) as caught:
        declare("nightly", **options)
    assert said in caught.value.message and "nightly" in caught.value.message
    assert pipeline.list_pipelines() == []


def test_unknown_names_are_key_errors() -> None:
    for ask in (pipeline.depends_on_of, pipeline.upstream_freshness_secs_of, pipeline.retry_policy_of):
        with pytest.raises(KeyError, match="nobody"):
            ask("nobody")


# ── workflows ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_workflow_has_its_jobs_in_the_order_of_their_dependencies() -> None:
    raw = declare("raw")
    declare("report", depends_on=["raw"])
    made = ematix.workflow(name="nightly", jobs=["report", raw], schedule="0 2 * * *", timezone="Europe/Berlin")
    check_graph()
    assert made.jobs == ("report", "raw")
    found = known()["nightly"]
    assert (found.kind, found.jobs, found.triggered_by, found.thing) == ("workflow", ("raw", "report"), None, made)
    assert found.due is not None and found.due.schedule.timezone == "Europe/Berlin"


def test_triggers_are_a_name_a_list_or_a_condition() -> None:
    for name in ("a", "b", "c", "d", "e", "f"):
        declare(name)
    first = ematix.workflow(name="first", jobs=["c"], triggered_by="b")
    second = ematix.workflow(name="second", jobs=["d"], triggered_by=["a", first])
    third = ematix.workflow(name="third", jobs=["e"], triggered_by=AnyOf("a", AllOf("first", "b")))
    check_graph()
    assert ematix.workflow(name="fourth", jobs=["f"], triggered_by=second).triggered_by == AllOf("second")
    assert first.triggered_by == AllOf("b")
    assert second.triggered_by == AllOf("a", "first")
    assert third.upstreams == ("a", "first", "b")


def test_a_workflow_may_be_repeated_when_all_its_jobs_may() -> None:
    declare("a", idempotent=True)
    declare("b")
    ematix.workflow(name="good", jobs=["a"], schedule="@daily")
    ematix.workflow(name="bad", jobs=["b"], schedule="@daily")
    assert known()["good"].is_repeatable and not known()["bad"].is_repeatable


def test_a_job_that_moves_to_another_workflow_warns_and_moves() -> None:
    declare("a")
    declare("b")
    ematix.workflow(name="first", jobs=["a", "b"], schedule="@daily")
    with pytest.warns(UserWarning, match="job 'b' moves from workflow 'first' to 'second'"):
        ematix.workflow(name="second", jobs=["b"], schedule="@daily")
    assert (known()["first"].jobs, known()["second"].jobs) == (("a",), ("b",))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "", "schedule": "@daily"}, "name"),
        ({"jobs": [], "schedule": "@daily"}, "no jobs"),
        ({"jobs": ["a", "a"], "schedule": "@daily"}, "'a' twice"),
        ({}, "no trigger"),
        ({"timezone": "Europe/Berlin", "triggered_by": "b"}, "timezone= needs schedule="),
        ({"schedule": "@daily", "on_message": "events/orders"}, "on_message= stands alone"),
        ({"triggered_by": "b", "on_message": "events/orders"}, "on_message= stands alone"),
        ({"on_message": "orders"}, "names a Kafka connection and a topic of it, not 'orders'"),
        ({"on_message": "/orders"}, "names a Kafka connection"),
        ({"on_message": "events/"}, "names a Kafka connection"),
        ({"on_message": "events/my orders"}, "names a Kafka connection"),
        ({"on_message": 3}, "names a Kafka connection"),
        ({"timezone": "Europe/Berlin", "on_message": "events/orders"}, "timezone= needs schedule="),
        ({"triggered_by": [3]}, "triggered_by"),
        ({"triggered_by": 3}, "triggered_by"),
        ({"triggered_by": ["b", "b"]}, "twice"),
        ({"triggered_by": []}, "empty"),
        ({"schedule": "@daily", "depends_on": ["b"]}, "depends_on"),
        ({"schedule": "often"}, "'w'.*not a cron expression"),
    ],
)
def test_a_workflow_that_cannot_run_is_a_value_error(options: dict[str, Any], said: str) -> None:
    declare("a")
    declare("b")
    with pytest.raises(InvalidDeclaration, match=said) as caught:
        ematix.workflow(**{"name": "w", "jobs": ["a"], **options})
    assert isinstance(caught.value, ValueError)
    assert registry.current().workflows() == ()


def test_new_messages_of_a_topic_start_a_workflow() -> None:
    declare("a")
    made = ematix.workflow(name="w", jobs=["a"], on_message="events/orders.v1")
    assert (made.on_message, made.triggered_by, made.schedule) == ("events/orders.v1", None, None)
    assert known()["w"].on_message == "events/orders.v1"
    check_graph()


def test_a_broker_that_cannot_be_asked_how_far_a_topic_has_come_starts_nothing() -> None:
    declare("a")
    register_connection(RabbitMQConnection(name="queues", amqp_url="amqp://localhost"))
    ematix.workflow(name="w", jobs=["a"], on_message="queues/orders")
    with pytest.raises(
        InvalidDeclaration, match="looks at topics of Kafka, and connection 'queues' is of kind 'rab"
    ) as caught:
        orchestrated()
    assert isinstance(caught.value, ValueError) and 'enqueue_run("w")' in caught.value.fix


def test_a_workflow_that_writes_the_messages_it_waits_for_is_refused() -> None:
    @ematix.table(schema="main")
    class Orders:
        id: BigInt

    for name, topic in (("other", "returns"), ("same", "orders")):
        target = Target(table=Orders, connection="events", mode="append", topic=topic)
        ematix.pipeline(targets=[target], name=name)(lambda conn: "SELECT 1 AS id")
    ematix.workflow(name="w", jobs=["other"], on_message="events/orders")
    check_graph()
    ematix.workflow(name="next", jobs=["same"], triggered_by="w")
    with pytest.raises(InvalidDeclaration, match="'w' starts what writes into 'events/orders', 'same', .* never come"):
        check_graph()


def test_an_unknown_option_is_answered_with_the_nearest() -> None:
    with pytest.raises(WrongDeclarationType) as caught:
        ematix.workflow(name="w", jobs=["a"], schedule="@daily", catch_up="all")
    assert caught.value.fix == "did you mean 'catchup'?"


def test_a_stream_needs_no_trigger_and_bears_none() -> None:
    pipeline_options = {
        "source": "k",
        "source_query": "SELECT * FROM t",
        "target": "db",
        "target_table": "main.t",
        "name": "live",
    }
    ematix.streaming_pipeline(**pipeline_options)(lambda: None)
    ematix.workflow(name="always", jobs=["live"])
    check_graph()
    assert known()["always"].jobs == ()
    with pytest.raises(InvalidDeclaration, match="'live' is a stream"):
        ematix.workflow(name="never", jobs=["live"], schedule="@daily")


def test_workflows_belong_to_the_graph_that_is_checked() -> None:
    declare("a")
    ematix.workflow(name="w", jobs=["a", "nobody"], schedule="@daily")
    with pytest.raises(InvalidDeclaration, match="'w' has the job 'nobody'"):
        check_graph()


def test_a_trigger_must_exist() -> None:
    declare("a")
    ematix.workflow(name="w", jobs=["a"], triggered_by="b")
    with pytest.raises(InvalidDeclaration, match="'w' waits for 'b'"):
        check_graph()


def test_workflows_do_not_wait_for_each_other() -> None:
    declare("a")
    declare("b")
    ematix.workflow(name="v", jobs=["a"], triggered_by="w")
    ematix.workflow(name="w", jobs=["b"], triggered_by="v")
    with pytest.raises(InvalidDeclaration, match="cycle: v → w → v"):
        check_graph()


@pytest.mark.parametrize(
    "triggers",
    [
        [("w", "a", "a")],
        [("w", "a", AnyOf("a", "ext"))],
        [("v", "a", "b"), ("w", "b", "a")],
        [("u", "a", "b"), ("v", "b", AllOf("u", "a")), ("w", "c", "v")],
    ],
)
def test_a_workflow_that_would_start_itself_for_ever_is_refused(triggers: list[tuple[str, str, Any]]) -> None:
    for name in ("a", "b", "c", "ext"):
        declare(name)
    for name, job, trigger in triggers:
        ematix.workflow(name=name, jobs=[job], triggered_by=trigger)
    with pytest.raises(InvalidDeclaration, match="triggered by what it starts, '[ab]'.* would never come to rest"):
        check_graph()


@pytest.mark.parametrize("options", [{"triggered_by": AllOf("a", "ext")}, {"triggered_by": "a", "schedule": "@daily"}])
def test_a_workflow_that_also_waits_for_something_else_may_run_what_triggers_it(options: dict[str, Any]) -> None:
    declare("a")
    declare("ext")
    ematix.workflow(name="w", jobs=["a"], **options)
    check_graph()


def test_a_workflow_and_a_pipeline_do_not_share_a_name() -> None:
    declare("a")
    ematix.workflow(name="a", jobs=["a"], schedule="@daily")
    with pytest.raises(InvalidDeclaration, match="'a' is a workflow and a pipeline"):
        check_graph()
