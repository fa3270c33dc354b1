"""Runs: looking first, several targets, steps afterwards, and the books that are kept in the target."""

from __future__ import annotations

import json
from typing import Annotated, Any
from uuid import UUID as Uuid

import pytest

from ematix_flow.contracts.runtime import SilentObserver, StepStatus
from ematix_flow.declare.columns import BigInt, Text
from ematix_flow.declare.keys import natural_key, pk
from ematix_flow.declare.namespace import Ematix
from ematix_flow.declare.normalizers import upper
from ematix_flow.declare.pipeline import Pipeline
from ematix_flow.declare.target import Target
from ematix_flow.errors import DuplicateKeys, FlowError, StepFailed, UnfitValue, UnknownName
from ematix_flow.run.post import run_transform
from ematix_flow.run.runner import run_pipeline
from ematix_flow.testing.bench import Bench, RouteName, Table, engine_of
from ematix_flow.testing.gaps import needs

ematix = Ematix()


def users_table(bench: Bench) -> Table:
    """People by number."""
    return bench.table("users", id=Annotated[BigInt, pk()], name=Text)


class Looking:
    """preview, dry_run, validate: nothing changes."""

    @needs("merge")
    def test_a_dry_run_counts_for_real_and_leaves_no_trace(self, bench: Bench, route: RouteName) -> None:
        users = users_table(bench)
        bench.put(users, [(1, "ann"), (2, "bob")], route=route)
        pipeline = bench.pipeline(users, route=route, mode="merge")
        pipeline.preview()  # what can never run is refused here, and only told of by a dry run
        before = bench.target.snapshot()
        first = pipeline.dry_run()
        assert first.is_dry_run and first.targets[0].dry_run_rows_affected == 2
        assert first.targets[0].dry_run_error is None
        assert bench.target.snapshot() == before
        pipeline.sync()
        bench.put(users, [(1, "ann"), (2, "rob"), (3, "eve")], route=route)
        before = bench.target.snapshot()
        second = pipeline.dry_run()
        assert second.targets[0].dry_run_rows_affected == 2
        bench.put(users, [(4, "a"), (4, "b")], route=route)
        third = pipeline.dry_run()
        assert third.targets[0].dry_run_rows_affected is None and "'id'" in (third.targets[0].dry_run_error or "")
        bench.put(users, [(1, "ann"), (2, "rob"), (3, "eve")], route=route)
        assert bench.target.snapshot() == before

    @needs("append")
    def test_a_dry_run_of_an_append_tells_what_would_fail_and_leaves_no_trace(
        self, bench: Bench, route: RouteName
    ) -> None:
        visits = bench.table("visits", who=Text)
        bench.put(visits, [("ann",), ("bob",)], route=route)
        pipeline = bench.pipeline(visits, route=route, mode="append")
        pipeline.preview()
        for _ in range(2):  # without the table, then with it
            before = bench.target.snapshot()
            (told,) = pipeline.dry_run().targets
            assert (told.dry_run_rows_affected, told.dry_run_error) == (2, None)
            assert bench.target.snapshot() == before
            pipeline.sync()
        bench.put(visits, [("ann",), (None,)], route=route)
        before = bench.target.snapshot()
        (told,) = pipeline.dry_run().targets
        assert told.dry_run_rows_affected is None and "'who'" in (told.dry_run_error or "")
        assert bench.target.snapshot() == before

    @needs("append", "incremental")
    def test_a_dry_run_applies_the_watermark_and_does_not_move_it(self, bench: Bench) -> None:
        numbers = bench.table("numbers", n=BigInt)
        options: dict[str, Any] = {"route": bench.quick, "mode": "append", "incremental_column": "n"}
        bench.load(numbers, [(1,), (2,)], **options)
        bench.put(numbers, [(1,), (2,), (3,)], route=bench.quick)
        assert bench.pipeline(numbers, **options).dry_run().targets[0].dry_run_rows_affected == 1
        assert bench.watermark("numbers") == ("n", "2")

    @needs("scd2")
    def test_a_preview_tells_everything_and_touches_nothing(self, bench: Bench, route: RouteName) -> None:
        mail: Any = Annotated[bench.target.text_key, natural_key()]
        users = bench.table("users", id=Annotated[BigInt, pk()], mail=mail, name=Text)
        bench.put(users, [(1, "a@x", "ann")], route=route)
        before = bench.target.snapshot()
        own_sql = ["SELECT 1"] if getattr(self, "sql", None) is None else []
        steps = [*own_sql, ematix.transform_ref("t")]
        pipeline = bench.pipeline(users, route=route, mode="scd2", keys=("mail",), transforms_post=steps)
        result = pipeline.preview()
        assert bench.target.snapshot() == before
        (plan,) = result.targets
        assert plan.path == ("same_db" if route == "pushdown" else "cross_db")
        assert plan.path_reason
        assert (plan.merge_keys, plan.merge_keys_reason) == (("mail",), "from explicit keys=")
        assert plan.compare_columns == ("id", "name")
        assert plan.declared_columns == ("id", "mail", "name")
        names = [column["name"] for column in plan.augmented_columns]
        assert names == [
            "id",
            "mail",
            "name",
            "valid_from",
            "valid_to",
            "is_current",
            "row_hash",
            "_loaded_at",
            "_batch_id",
        ]
        assert plan.dry_run_rows_affected is None and len(plan.plan_sql) >= 3
        told = [*(("sql", sql) for sql in own_sql), ("transform_ref", "t")]
        assert [(t.kind, t.summary) for t in result.transforms_post] == told
        assert json.loads(result.to_json())["targets"][0]["mode"] == "scd2"

    @needs("append")
    def test_a_preview_of_an_append_shows_every_column_and_touches_nothing(
        self, bench: Bench, route: RouteName
    ) -> None:
        users = users_table(bench)
        bench.put(users, [(1, "ann")], route=route)
        before = bench.target.snapshot()
        (plan,) = bench.pipeline(users, route=route, mode="append").preview().targets
        assert bench.target.snapshot() == before
        assert plan.path == ("same_db" if route == "pushdown" else "cross_db") and plan.path_reason
        assert plan.declared_columns == ("id", "name") and plan.merge_keys == ()
        names = [column["name"] for column in plan.augmented_columns]
        assert names == ["id", "name", "_loaded_at", "_batch_id"]
        assert any("src_users" in sql for sql in plan.plan_sql)

    @needs("append", "sql")
    def test_validate_asks_source_and_target_and_changes_nothing(self, bench: Bench) -> None:
        users = users_table(bench)
        name = bench.target.sql_name("users")
        bench.load(users, [(1, "ann")], route=bench.quick, mode="append", transforms_post=[f"DELETE FROM {name}"])
        before = bench.target.snapshot()

        def wrong(conn: Any) -> str:
            return "SELECT id, name FROM nowhere_at_all"

        good = bench.pipeline(users, route=bench.quick, mode="append", transforms_post=[f"DELETE FROM {name}"])
        assert good.validate().ok
        bad = bench.pipeline(
            users,
            route=bench.quick,
            mode="append",
            function=wrong,
            name="bad",
            transforms_post=["DELETE FROM also_nowhere"],
        ).validate()
        assert not bad.ok and "nowhere_at_all" in " ".join(bad.errors)
        late = bench.pipeline(users, route=bench.quick, mode="append", transforms_post=["DELETE FROM also_nowhere"])
        assert not late.validate().ok and "also_nowhere" in " ".join(late.validate().errors)
        assert bench.target.snapshot() == before


class Books:
    """History, watermarks, replays."""

    @needs("merge")
    def test_every_run_is_in_the_history_of_the_target(self, bench: Bench, route: RouteName) -> None:
        users = users_table(bench)
        first = bench.load(users, [(1, "ann"), (2, "bob")], route=route, mode="merge")
        second = bench.load(users, [(1, "ann"), (2, "rob"), (3, "eve")], route=route, mode="merge")
        with pytest.raises(DuplicateKeys):
            bench.load(users, [(1, "x"), (1, "y")], route=route, mode="merge")
        one, two, three = bench.runs("users")
        assert (one["run_id"], two["run_id"]) == (first.run_id, second.run_id)
        assert Uuid(three["run_id"])
        assert [run["status"] for run in (one, two, three)] == ["success", "success", "failed"]
        assert (two["rows_inserted"], two["rows_updated"], two["rows_unchanged"]) == (1, 1, 1)
        assert {run["mode"] for run in (one, two, three)} == {"merge"}
        assert {run["target_table"] for run in (one, two, three)} == {"users"}
        assert two["path"] == second.path and one["error_message"] is None
        assert "'id'" in three["error_message"]
        assert all(run["started_at"] <= run["finished_at"] for run in (one, two, three))

    @needs("append")
    def test_every_append_is_in_the_history_of_the_target(self, bench: Bench, route: RouteName) -> None:
        visits = bench.table("visits", who=Text)
        first = bench.load(visits, [("ann",), ("bob",)], route=route, mode="append")
        with pytest.raises(UnfitValue, match="'who'"):
            bench.load(visits, [(None,)], route=route, mode="append")
        one, two = bench.runs("visits")
        assert (one["run_id"], one["status"], one["error_message"]) == (first.run_id, "success", None)
        assert (one["rows_inserted"], one["rows_updated"], one["rows_unchanged"]) == (2, 0, 0)
        assert Uuid(two["run_id"]) and two["status"] == "failed" and "'who'" in two["error_message"]
        assert {run["mode"] for run in (one, two)} == {"append"}
        assert {(run["target_schema"], run["target_table"]) for run in (one, two)} == {self.place_of(bench, "visits")}
        assert one["path"] == first.path
        assert all(run["started_at"] <= run["finished_at"] for run in (one, two))

    def place_of(self, bench: Bench, name: str) -> tuple[str | None, str]:
        """Schema and name of a table as the books write them."""
        shape = bench.target.shape(name)
        assert shape is not None
        return shape.ref.schema, shape.ref.name

    @needs("scd2")
    def test_the_history_of_scd2_counts_closed_versions_as_updated(self, bench: Bench) -> None:
        users = users_table(bench)
        bench.load(users, [(1, "ann"), (2, "bob")], route=bench.quick, mode="scd2")
        bench.load(users, [(1, "eve"), (2, "bob")], route=bench.quick, mode="scd2")
        last = bench.runs("users")[-1]
        assert (last["rows_inserted"], last["rows_updated"], last["mode"]) == (1, 1, "scd2")

    @needs("append")
    def test_repeating_a_logical_run_changes_nothing(self, bench: Bench, route: RouteName) -> None:
        visits = bench.table("visits", who=Text)
        bench.load(visits, [("ann",)], route=route, mode="append", run_id="2026-03-01")
        before = bench.rows(visits, "_loaded_at", "_batch_id")
        bench.put(visits, [("ann",), ("bob",)], route=route)
        again = bench.pipeline(visits, route=route, mode="append").sync(run_id="2026-03-01")
        assert (again.status, again.replayed, again.rows_inserted) == ("success", True, 0)
        assert bench.rows(visits, "_loaded_at", "_batch_id") == before
        bench.pipeline(visits, route=route, mode="append").sync(run_id="2026-03-02")
        assert bench.rows(visits) == [("ann",), ("ann",), ("bob",)]

    @needs("append")
    def test_nothing_of_a_load_is_left_beside_the_target(self, bench: Bench) -> None:
        visits = bench.table("visits", who=Text)
        bench.load(visits, [("ann",)], route="spark", mode="append")
        with pytest.raises(FlowError):
            bench.load(visits, [("ann",), (None,)], route="spark", mode="append")
        assert bench.rows(visits) == [("ann",)] and bench.target.strays("visits") == set()


class EndedSteps(SilentObserver):
    """Remembers the steps that ended well."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def step(self, name: str, status: StepStatus, detail: str = "", duration_ms: float | None = None) -> None:
        """Remember it."""
        if status == "succeeded":
            self.names.append(name)


class SeveralTargets:
    """One source, several tables, each a load of its own."""

    def fan_out(self, bench: Bench, route: RouteName, targets: list[Target], **options: Any) -> Pipeline:
        """A pipeline from the source of `users` into several targets."""
        place = bench.place(route)

        def everyone() -> None:
            return None

        declared = ematix.pipeline(
            targets=targets,
            name="fan",
            source_connection=place.connection,
            source_table=f"{place.schema}.src_users",
            engine=engine_of(route),
            **options,
        )(everyone)
        assert isinstance(declared, Pipeline)
        return declared

    @needs("merge", "scd2")
    def test_each_target_has_its_own_mode_counts_and_history(self, bench: Bench, route: RouteName) -> None:
        users, copies = users_table(bench), bench.table("copies", id=Annotated[BigInt, pk()], name=Text)
        targets = [
            ematix.target(users, mode="merge", target_connection=bench.target.connection),
            Target(table=copies, connection=bench.target.connection),
        ]
        bench.put(users, [(1, "ann"), (2, "bob")], route=route)
        pipeline = self.fan_out(bench, route, targets, mode="scd2")
        first = pipeline.sync()
        bench.put(users, [(1, "ann"), (2, "rob")], route=route)
        second = pipeline.sync()
        one, other = f"{bench.target.schema}.users", f"{bench.target.schema}.copies"
        assert list(first) == [one, other] and first[one].rows_inserted == 2
        assert (second[one].rows_updated, second[other].rows_closed) == (1, 1)
        assert bench.rows(users) == [(1, "ann"), (2, "rob")]
        assert bench.history(copies) == [(1, "ann", 1, None, True), (2, "bob", 1, 2, False), (2, "rob", 2, None, True)]
        assert {run["pipeline_name"] for run in bench.runs()} == {f"fan::{one}", f"fan::{other}"}

    @needs("append")
    def test_targets_that_go_through_spark_share_one_reading(self, bench: Bench) -> None:
        people, names = bench.table("people", id=BigInt, name=Text), bench.table("names", name=Annotated[Text, upper()])
        connection = bench.target.connection
        targets = [Target(table=table, connection=connection, mode="append") for table in (people, names)]
        bench.put(users_table(bench), [(1, "ann"), (2, "bob")], route="spark")
        watching = EndedSteps()
        run_pipeline(self.fan_out(bench, "spark", targets).spec, observer=watching)
        assert watching.names.count("read") == 1
        assert bench.rows(people) == [(1, "ann"), (2, "bob")] and bench.rows(names) == [("ANN",), ("BOB",)]

    @needs("append", "merge")
    def test_the_first_failure_stops_unless_told_to_go_on(self, bench: Bench) -> None:
        users, copies = users_table(bench), bench.table("copies", id=BigInt, name=Text)
        third = bench.table("third", id=BigInt, name=Text)
        connection = bench.target.connection
        targets = [
            ematix.target(copies, mode="append", target_connection=connection),
            ematix.target(users, mode="merge", target_connection=connection),
            ematix.target(third, mode="append", target_connection=connection),
        ]
        bench.put(users, [(1, "ann"), (1, "eve")], route=bench.quick)
        with pytest.raises(DuplicateKeys):
            self.fan_out(bench, bench.quick, targets).sync()
        assert len(bench.rows(copies)) == 2 and bench.target.shape("third") is None
        result = self.fan_out(bench, bench.quick, targets, continue_on_target_failure=True).sync()
        assert list(result["errors"]) == [f"{bench.target.schema}.users"]
        assert list(result["results"]) == [f"{bench.target.schema}.copies", f"{bench.target.schema}.third"]
        assert len(bench.rows(copies)) == 4 and len(bench.rows(third)) == 2


class AfterLoad:
    """`transforms_post`."""

    @needs("append", "sql")
    def test_steps_run_in_order_and_are_recorded_with_the_load(self, bench: Bench, route: RouteName) -> None:
        users = users_table(bench)
        name = bench.target.sql_name("users")
        seen: list[Any] = []

        def one(conn: Any) -> dict[str, int]:
            return {"people": conn.fetch_scalar_int(f"SELECT count(*) FROM {name} WHERE name = 'ANN'")}

        def two(conn: Any, parent: Any) -> None:
            seen.append((parent.pipeline_name, parent.run_id, parent.rows_inserted))
            conn.execute(f"DELETE FROM {name} WHERE id = 2")

        @ematix.transform(name="declared")
        def declared(conn: Any, parent: Any) -> dict[str, bool]:
            return {"has_parent": parent is not None}

        steps = [f"UPDATE {name} SET name = upper(name)", one, two, ematix.transform_ref("declared")]
        result = bench.load(users, [(1, "ann"), (2, "bob")], route=route, mode="append", transforms_post=steps)
        assert bench.rows(users) == [(1, "ANN")]
        assert seen == [("users", result.run_id, 2)]
        load, *after = bench.runs("users")
        assert [run["step_name"] for run in after] == [
            "transform[0]:sql",
            "transform[1]:one",
            "transform[2]:two",
            "transform[3]:ref=declared",
        ]
        assert {(run["mode"], run["path"], run["status"]) for run in after} == {
            ("transform", "post", "transform_success")
        }
        assert {run["parent_run_id"] for run in after} == {load["run_id"]} == {result.run_id}
        metrics = [json.loads(run["metrics_json"]) if run["metrics_json"] else None for run in after]
        assert metrics == [None, {"people": 1}, None, {"has_parent": True}]

    @needs("append", "sql")
    def test_a_failing_step_keeps_the_load_and_undoes_only_itself(self, bench: Bench) -> None:
        users = users_table(bench)
        name = bench.target.sql_name("users")

        def half(conn: Any) -> None:
            conn.execute_in_transaction([f"UPDATE {name} SET name = 'gone'"])  # a part of the step
            conn.execute(f"DELETE FROM {name}")
            raise ValueError("no")

        steps = [half, f"UPDATE {name} SET name = 'late'"]
        bench.load(users, [], route=bench.quick, mode="append", transforms_post=steps[1:], name="without")
        with pytest.raises(StepFailed, match=r"transform\[0\]:half"):
            bench.load(users, [(1, "ann")], route=bench.quick, mode="append", transforms_post=steps)
        assert bench.rows(users) == [(1, "ann")]
        statuses = [(run["step_name"], run["status"]) for run in bench.runs("users")]
        assert statuses[1:] == [("transform[0]:half", "transform_failed")]
        bench.load(
            users, [(2, "bob")], route=bench.quick, mode="append", transforms_post=steps, continue_on_failure_post=True
        )
        assert bench.rows(users) == [(1, "late"), (2, "late")]

    @needs("append", "truncate")
    def test_a_reference_may_be_a_pipeline_and_an_unknown_one_is_named(self, bench: Bench) -> None:
        users, copies = users_table(bench), bench.table("copies", id=BigInt, name=Text)
        name = bench.target.sql_name("users")

        def copy(conn: Any) -> str:
            return f"SELECT id, name FROM {name}"

        bench.pipeline(copies, route=bench.quick, mode="truncate", function=copy, name="copy", place=bench.target)
        bench.load(
            users, [(1, "ann")], route=bench.quick, mode="append", transforms_post=[ematix.transform_ref("copy")]
        )
        assert bench.rows(copies) == [(1, "ann")]
        with pytest.raises(UnknownName, match="'nobody'"):
            bench.load(
                users, [(2, "bob")], route=bench.quick, mode="append", transforms_post=[ematix.transform_ref("nobody")]
            )
        assert len(bench.rows(users)) == 2

    @needs("sql")
    def test_a_transform_runs_on_its_own_without_a_parent(self, bench: Bench) -> None:
        @ematix.transform(name="alone", target_connection=bench.target.connection)
        def alone(conn: Any, parent: Any) -> dict[str, Any]:
            return {"parent": parent, "one": conn.fetch_scalar_int("SELECT 1")}

        result = run_transform("alone")
        assert (result.status, result.metrics) == ("transform_success", {"parent": None, "one": 1})
