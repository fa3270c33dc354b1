"""The modes: whole tables, honest counts, untouched rows, refusals that change nothing. On every route."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any

import pytest

from ematix_flow.declare.columns import BigInt, Date, Double, Integer, Numeric, Text, Timestamp, TimestampTZ
from ematix_flow.declare.keys import natural_key, pk
from ematix_flow.errors import DuplicateKeys, EmptySource, FlowError, LateArrival, MissingKeys, UnfitValue
from ematix_flow.testing.bench import Bench, RouteName
from ematix_flow.testing.endpoints import in_order
from ematix_flow.testing.gaps import needs

MONEY: Any = Numeric[8, 2]  # type: ignore[misc]  # a type made by subscript is no generic to mypy


def day(number: int) -> datetime:
    """An instant on a day of March 2026."""
    return datetime(2026, 3, number, 6, 0, 0, 250000, tzinfo=timezone.utc)


class AppendAndTruncate:
    """Rows in, as they are."""

    @needs("append")
    def test_append_adds_all_rows_every_time_and_stamps_them(self, bench: Bench, route: RouteName) -> None:
        visits = bench.table("visits", who=Text, page=Text | None)
        first = bench.load(visits, [("ann", "/"), ("ann", "/"), ("bob", None)], route=route, mode="append")
        second = bench.load(visits, [("ann", "/")], route=route, mode="append")
        assert (first.rows_inserted, second.rows_inserted) == (3, 1)
        assert bench.rows(visits) == [("ann", "/"), ("ann", "/"), ("ann", "/"), ("bob", None)]
        assert list(bench.columns(visits)) == ["who", "page", "_loaded_at", "_batch_id"]
        stamped = bench.rows(visits, "_batch_id")
        assert [row[2] for row in stamped].count(first.run_id) == 3
        assert [row[2] for row in stamped].count(second.run_id) == 1
        loaded = {row[2] for row in bench.rows(visits, "_loaded_at")}
        assert len(loaded) == 2 and all(abs(datetime.now(timezone.utc) - m) < timedelta(minutes=10) for m in loaded)

    @needs("append", "keys_enforced")
    def test_append_of_a_key_that_exists_fails_and_keeps_nothing(self, bench: Bench, route: RouteName) -> None:
        users = bench.table("users", id=Annotated[BigInt, pk()], name=Text)
        bench.load(users, [(1, "ann")], route=route, mode="append")
        with pytest.raises(DuplicateKeys, match="id|users_pkey"):
            bench.load(users, [(2, "bob"), (1, "eve")], route=route, mode="append")
        assert bench.rows(users) == [(1, "ann")]
        assert [run["status"] for run in bench.runs("users")] == ["success", "failed"]

    @needs("append")
    def test_append_of_an_empty_source_creates_the_table_and_no_row(self, bench: Bench, route: RouteName) -> None:
        visits = bench.table("visits", who=Text)
        assert bench.load(visits, [], route=route, mode="append").rows_inserted == 0
        assert bench.rows(visits) == []

    @needs("truncate")
    def test_truncate_replaces_everything_or_nothing(self, bench: Bench, route: RouteName) -> None:
        totals = bench.table("totals", city=Text, total=BigInt | None)
        bench.load(totals, [("Rome", 1), ("Oslo", 2)], route=route, mode="truncate")
        second = bench.load(totals, [("Oslo", 5), ("Bonn", None)], route=route, mode="truncate")
        assert second.rows_inserted == 2
        assert bench.rows(totals) == [("Bonn", None), ("Oslo", 5)]
        with pytest.raises(UnfitValue, match="city"):
            bench.load(totals, [("Rome", 1), (None, 2)], route=route, mode="truncate")
        assert bench.rows(totals) == [("Bonn", None), ("Oslo", 5)]
        bench.load(totals, [], route=route, mode="truncate")
        assert bench.rows(totals) == []


class Merge:
    """One row per key."""

    @needs("merge")
    @pytest.mark.parametrize("mode", ["merge", "scd1"])
    def test_merge_inserts_updates_and_leaves_the_rest_alone(self, bench: Bench, route: RouteName, mode: str) -> None:
        stock = bench.table(
            "stock",
            shop=Annotated[bench.target.text_key, pk()],
            item=Annotated[BigInt, pk()],
            count=BigInt | None,
            note=Text | None,
        )
        rows = [("north", 1, 10, "a"), ("north", 2, None, None), ("south", 1, 7, ""), ("south", 2, 0, "d")]
        first = bench.load(stock, rows, route=route, mode=mode)
        changed = [("north", 1, 10, "a"), ("north", 2, 5, None), ("south", 1, 7, None), ("west", 1, 1, "new")]
        second = bench.load(stock, changed, route=route, mode=mode)
        assert (first.rows_inserted, first.rows_updated, first.rows_unchanged) == (4, 0, 0)
        assert (second.rows_inserted, second.rows_updated, second.rows_unchanged) == (1, 2, 1)
        assert bench.rows(stock) == [
            ("north", 1, 10, "a"),
            ("north", 2, 5, None),
            ("south", 1, 7, None),
            ("south", 2, 0, "d"),
            ("west", 1, 1, "new"),
        ]
        assert bench.batches(stock) == {
            ("north", 1): first.run_id,
            ("north", 2): second.run_id,
            ("south", 1): second.run_id,
            ("south", 2): first.run_id,
            ("west", 1): second.run_id,
        }
        assert [run["mode"] for run in bench.runs("stock")] == [mode, mode]

    @needs("merge")
    def test_merge_compares_and_writes_only_the_columns_it_is_told(self, bench: Bench, route: RouteName) -> None:
        users = bench.table("users", id=Annotated[BigInt, pk()], name=Text, seen=BigInt, made_by=Text)
        bench.load(users, [(1, "ann", 1, "x"), (2, "bob", 1, "x")], route=route, mode="merge")
        result = bench.load(
            users,
            [(1, "ann", 2, "y"), (2, "rob", 2, "y"), (3, "eve", 2, "y")],
            route=route,
            mode="merge",
            compare_columns=("name",),
            update_columns=("name", "seen"),
        )
        assert (result.rows_inserted, result.rows_updated, result.rows_unchanged) == (1, 1, 1)
        assert bench.rows(users) == [(1, "ann", 1, "x"), (2, "rob", 2, "x"), (3, "eve", 2, "y")]
        only_new = bench.load(
            users, [(1, "zed", 9, "z"), (4, "new", 9, "z")], route=route, mode="merge", update_columns=()
        )
        assert (only_new.rows_inserted, only_new.rows_updated) == (1, 0)
        assert bench.rows(users)[0] == (1, "ann", 1, "x") and bench.rows(users)[3] == (4, "new", 9, "z")

    @needs("merge")
    def test_merge_refuses_a_key_that_comes_twice_or_is_null(self, bench: Bench, route: RouteName) -> None:
        users = bench.table("users", id=Annotated[BigInt, pk()], mail=Text | None, name=Text)
        bench.load(users, [(1, "a@x", "ann")], route=route, mode="merge")
        with pytest.raises(DuplicateKeys, match="'id'") as caught:
            bench.load(users, [(1, "a@x", "eve"), (2, None, "bob"), (2, None, "rob")], route=route, mode="merge")
        assert "deduplicate_by" in (caught.value.fix or "")
        with pytest.raises(UnfitValue, match="'mail'"):
            bench.load(users, [(5, None, "eve")], route=route, mode="merge", keys=("mail",))
        assert bench.rows(users) == [(1, "a@x", "ann")]

    @needs("merge")
    def test_merge_keys_need_no_index_and_may_be_given_for_one_run(self, bench: Bench, route: RouteName) -> None:
        users = bench.table("users", id=BigInt, mail=Text, name=Text)
        bench.load(users, [(1, "a@x", "ann"), (2, "b@x", "bob")], route=route, mode="merge", keys=("id",))
        bench.put(users, [(9, "a@x", "ann"), (2, "c@x", "new")], route=route)
        pipeline = bench.pipeline(users, route=route, mode="merge", keys=("id",))
        result = pipeline.sync(keys=("mail",))
        assert (result.rows_inserted, result.rows_updated) == (1, 1)
        assert bench.rows(users) == [(2, "b@x", "bob"), (2, "c@x", "new"), (9, "a@x", "ann")]

    @needs("merge")
    def test_merge_prefers_the_natural_key_and_says_so(self, bench: Bench) -> None:
        mail: Any = Annotated[bench.target.text_key, natural_key()]
        users = bench.table("users", id=Annotated[BigInt, pk()], mail=mail, name=Text)
        for rows in ([(1, "a@x", "ann"), (2, "b@x", "bob")], [(7, "a@x", "eve")]):
            with pytest.warns(UserWarning, match="'mail'.*keys="):
                bench.load(users, rows, route=bench.quick, mode="merge")
        assert bench.rows(users) == [(2, "b@x", "bob"), (7, "a@x", "eve")]
        with pytest.raises(MissingKeys, match="keys|pk"):
            bench.pipeline(bench.table("loose", id=BigInt, name=Text), route=bench.quick, mode="merge")

    @needs("merge")
    def test_hard_deletes_remove_what_the_source_lost_but_never_everything(
        self, bench: Bench, route: RouteName
    ) -> None:
        users = bench.table("users", id=Annotated[BigInt, pk()], name=Text)
        deleting = {"route": route, "mode": "merge", "handle_deletes": "hard"}
        bench.load(users, [(1, "ann"), (2, "bob"), (3, "eve")], **deleting)  # type: ignore[arg-type]
        result = bench.load(users, [(1, "ann"), (2, "rob"), (4, "new")], **deleting)  # type: ignore[arg-type]
        assert (result.rows_inserted, result.rows_updated, result.rows_unchanged, result.rows_deleted) == (1, 1, 1, 1)
        assert bench.rows(users) == [(1, "ann"), (2, "rob"), (4, "new")]
        with pytest.raises(EmptySource, match="refuses an empty source"):
            bench.load(users, [], **deleting)  # type: ignore[arg-type]
        assert bench.rows(users) == [(1, "ann"), (2, "rob"), (4, "new")]
        emptied = bench.load(users, [], **deleting, allow_empty_source=True)  # type: ignore[arg-type]
        assert emptied.rows_deleted == 3 and bench.rows(users) == []


class Scd2:
    """Histories."""

    @needs("scd2")
    def test_scd2_by_load_time_opens_closes_and_keeps_versions(self, bench: Bench, route: RouteName) -> None:
        prices = bench.table(
            "prices",
            shop=Annotated[bench.target.text_key, pk()],
            item=Annotated[BigInt, pk()],
            price=MONEY | None,
            note=Text,
        )
        one = [("a", 1, Decimal("1.50"), "x"), ("a", 2, None, "x"), ("b", 1, Decimal("3.00"), "x")]
        two = [("a", 1, Decimal("1.50"), "x"), ("a", 2, Decimal("2.00"), "x"), ("c", 1, None, "y")]
        first = bench.load(prices, one, route=route, mode="scd2")
        second = bench.load(prices, two, route=route, mode="scd2")
        third = bench.load(prices, two, route=route, mode="scd2")
        assert (first.rows_inserted, first.rows_closed) == (3, 0)
        assert (second.rows_inserted, second.rows_closed) == (2, 1)
        assert (third.rows_inserted, third.rows_closed) == (0, 0)
        assert bench.history(prices) == [
            ("a", 1, Decimal("1.50"), "x", 1, None, True),
            ("a", 2, None, "x", 1, 2, False),
            ("a", 2, Decimal("2.00"), "x", 2, None, True),
            ("b", 1, Decimal("3.00"), "x", 1, None, True),
            ("c", 1, None, "y", 2, None, True),
        ]
        shape = bench.target.shape("prices")
        assert shape is not None and shape.primary_key in (("shop", "item", "valid_from"), ())
        hashes = {row[4] for row in bench.rows(prices, "row_hash")}
        assert len(hashes) == 5 and all(len(digest) == 32 for digest in hashes)
        assert set(bench.batches(prices).values()) == {first.run_id, second.run_id}

    @needs("scd2")
    def test_scd2_by_event_time_is_right_whatever_the_order_of_arrival(self, bench: Bench, route: RouteName) -> None:
        levels = bench.table("levels", id=Annotated[BigInt, pk()], level=Text | None, at=TimestampTZ)
        timed = {"route": route, "mode": "scd2", "event_timestamp_column": "at"}
        # Three versions of a key in one batch, one of them repeated; another key starts with NULL.
        batch = [(1, "gold", day(20)), (1, "blue", day(2)), (1, "blue", day(4)), (2, None, day(5))]
        first = bench.load(levels, batch, **timed)  # type: ignore[arg-type]
        assert first.rows_inserted == 3
        # Late before, late between, NULL → value.
        bench.load(levels, [(1, "none", day(1)), (1, "grey", day(10)), (2, "red", day(6))], **timed)  # type: ignore[arg-type]
        expected = [
            (1, "blue", day(2), day(2), day(10), False),
            (1, "gold", day(20), day(20), None, True),
            (1, "grey", day(10), day(10), day(20), False),
            (1, "none", day(1), day(1), day(2), False),
            (2, None, day(5), day(5), day(6), False),
            (2, "red", day(6), day(6), None, True),
        ]
        assert bench.rows(levels, "valid_from", "valid_to", "is_current") == expected
        # A replay of the first batch changes nothing, not even a stamp.
        before = bench.rows(levels, "_loaded_at", "_batch_id", "row_hash")
        replayed = bench.load(levels, batch, **timed)  # type: ignore[arg-type]
        assert (replayed.rows_inserted, replayed.rows_closed, replayed.rows_updated) == (0, 0, 0)
        assert bench.rows(levels, "_loaded_at", "_batch_id", "row_hash") == before
        # An equal time with other content is a correction.
        bench.load(levels, [(1, "rose", day(10))], **timed)  # type: ignore[arg-type]
        assert (1, "rose", day(10), day(10), day(20), False) in bench.rows(
            levels, "valid_from", "valid_to", "is_current"
        )
        assert len(bench.rows(levels)) == 6

    @needs("scd2")
    def test_scd2_refuses_strict_late_arrivals_missing_times_and_double_keys(
        self, bench: Bench, route: RouteName
    ) -> None:
        levels = bench.table("levels", id=Annotated[BigInt, pk()], level=Text, at=TimestampTZ | None)
        timed = {"route": route, "mode": "scd2", "event_timestamp_column": "at"}
        bench.load(levels, [(1, "gold", day(20))], **timed)  # type: ignore[arg-type]
        before = bench.rows(levels, "valid_from", "valid_to", "_batch_id")
        with pytest.raises(LateArrival, match="'at'"):
            bench.load(levels, [(1, "blue", day(2))], late_arrivals="error", **timed)  # type: ignore[arg-type]
        with pytest.raises(UnfitValue, match="'at'"):
            bench.load(levels, [(1, "blue", None)], **timed)  # type: ignore[arg-type]
        with pytest.raises(DuplicateKeys, match="'id'"):
            bench.load(levels, [(1, "a", day(21)), (1, "b", day(21))], **timed)  # type: ignore[arg-type]
        with pytest.raises(DuplicateKeys, match="'id'"):
            bench.load(levels, [(2, "a", day(21)), (2, "b", day(22))], route=route, mode="scd2")
        assert bench.rows(levels, "valid_from", "valid_to", "_batch_id") == before

    @needs("scd2")
    def test_scd2_soft_deletes_close_absent_keys_and_reopen_returning_ones(
        self, bench: Bench, route: RouteName
    ) -> None:
        users = bench.table("users", id=Annotated[BigInt, pk()], name=Text)
        soft = {"route": route, "mode": "scd2", "handle_deletes": "soft"}
        bench.load(users, [(1, "ann"), (2, "bob")], **soft)  # type: ignore[arg-type]
        gone = bench.load(users, [(1, "ann")], **soft)  # type: ignore[arg-type]
        assert (gone.rows_inserted, gone.rows_closed) == (0, 1)
        assert bench.history(users) == [(1, "ann", 1, None, True), (2, "bob", 1, 2, False)]
        back = bench.load(users, [(1, "ann"), (2, "bob")], **soft)  # type: ignore[arg-type]
        assert (back.rows_inserted, back.rows_closed) == (1, 0)
        assert bench.history(users) == [
            (1, "ann", 1, None, True),
            (2, "bob", 1, 2, False),
            (2, "bob", 3, None, True),
        ]

    @needs("scd2")
    def test_scd2_closes_versions_older_than_the_ttl(self, bench: Bench, route: RouteName) -> None:
        levels = bench.table("levels", id=Annotated[BigInt, pk()], level=Text, at=TimestampTZ)
        recent = datetime.now(timezone.utc).replace(microsecond=0)
        result = bench.load(
            levels,
            [(1, "old", recent - timedelta(days=9)), (2, "new", recent)],
            route=route,
            mode="scd2",
            event_timestamp_column="at",
            ttl=timedelta(days=1),
        )
        assert (result.rows_inserted, result.rows_closed) == (2, 1)
        assert bench.history(levels, "id", "level") == [(1, "old", 1, 3, False), (2, "new", 2, None, True)]

    @needs("scd2", "exact_history")
    def test_exact_history_does_not_depend_on_the_order_of_arrival(self, bench: Bench, route: RouteName) -> None:
        one = bench.table("in_order", id=Annotated[BigInt, pk()], level=Text, at=TimestampTZ)
        other = bench.table("out_of_order", id=Annotated[BigInt, pk()], level=Text, at=TimestampTZ)
        events = [(1, "a", day(1)), (1, "b", day(5)), (1, "a", day(7)), (1, "a", day(9))]
        exact = {"route": route, "mode": "scd2", "event_timestamp_column": "at", "exact_history": True}
        bench.load(one, events, **exact)  # type: ignore[arg-type]
        bench.load(other, [events[0], events[2]], **exact)  # type: ignore[arg-type]
        bench.load(other, [events[1], events[3]], **exact)  # type: ignore[arg-type]
        versions = ("valid_from", "valid_to", "is_current", "row_hash")
        assert bench.rows(other, *versions) == bench.rows(one, *versions)
        assert len(bench.rows(one)) == 3

    @needs("scd2", "exact_history", "adds_columns")
    def test_exact_history_goes_on_after_a_column_was_added(self, bench: Bench, route: RouteName) -> None:
        before = bench.table("levels", id=Annotated[BigInt, pk()], level=Text, at=TimestampTZ)
        exact = {"route": route, "mode": "scd2", "event_timestamp_column": "at", "exact_history": True}
        bench.load(before, [(1, "a", day(1))], **exact)  # type: ignore[arg-type]
        after = bench.table("levels", id=Annotated[BigInt, pk()], level=Text, at=TimestampTZ, note=Text | None)
        bench.load(after, [(1, "b", day(5), "why")], **exact)  # type: ignore[arg-type]
        assert bench.history(after, "id", "level", "note") == [
            (1, "a", None, 1, 2, False),
            (1, "b", "why", 2, None, True),
        ]


class Incremental:
    """Only what is new."""

    @needs("append", "incremental")
    def test_incremental_append_takes_what_is_greater_in_the_columns_own_type(
        self, bench: Bench, route: RouteName
    ) -> None:
        numbers = bench.table("numbers", n=BigInt, word=Text)
        by_n = {"route": route, "mode": "append", "incremental_column": "n"}
        first = bench.load(numbers, [(8, "a"), (9, "b")], **by_n)  # type: ignore[arg-type]
        second = bench.load(numbers, [(8, "late"), (9, "same"), (10, "c"), (100, "d")], **by_n)  # type: ignore[arg-type]
        assert (first.rows_inserted, second.rows_inserted) == (2, 2)
        assert bench.rows(numbers) == [(8, "a"), (9, "b"), (10, "c"), (100, "d")]
        assert bench.watermark("numbers") == ("n", "100")
        nothing = bench.load(numbers, [(50, "late")], **by_n)  # type: ignore[arg-type]
        assert nothing.rows_inserted == 0 and bench.watermark("numbers") == ("n", "100")
        with pytest.raises(FlowError):
            bench.load(numbers, [(200, None)], **by_n)  # type: ignore[arg-type]
        assert bench.watermark("numbers") == ("n", "100") and len(bench.rows(numbers)) == 4

    @needs("append", "incremental")
    def test_incremental_append_by_instant_is_exact_to_the_microsecond(self, bench: Bench, route: RouteName) -> None:
        events = bench.table("events", at=TimestampTZ, word=Text)
        by_time = {"route": route, "mode": "append", "watermark_column": "at", "incremental": True}
        mark = day(3)
        bench.load(events, [(day(1), "a"), (mark, "b")], **by_time)  # type: ignore[arg-type]
        assert bench.watermark("events") == ("at", "2026-03-03T06:00:00.250000Z")
        bench.load(events, [(mark, "same"), (mark + timedelta(microseconds=1), "c")], **by_time)  # type: ignore[arg-type]
        assert bench.rows(events) == [(day(1), "a"), (mark, "b"), (mark + timedelta(microseconds=1), "c")]
        assert bench.watermark("events") == ("at", "2026-03-03T06:00:00.250001Z")

    @needs("append", "incremental")
    def test_incremental_append_by_decimal_compares_numbers_not_text(self, bench: Bench, route: RouteName) -> None:
        numbers = bench.table("numbers", n=MONEY)
        by_n = {"route": route, "mode": "append", "incremental_column": "n"}
        bench.load(numbers, [(Decimal("9.50"),), (Decimal("10.00"),), (Decimal("-11.00"),)], **by_n)  # type: ignore[arg-type]
        assert bench.watermark("numbers") == ("n", "10.00")
        bench.load(numbers, [(Decimal("9.75"),), (Decimal("-1.00"),), (Decimal("100.00"),)], **by_n)  # type: ignore[arg-type]
        assert bench.rows(numbers) == [(Decimal(n),) for n in ("-11.00", "9.50", "10.00", "100.00")]
        assert bench.watermark("numbers") == ("n", "100.00")

    @needs("append", "incremental", "pushdown")
    @pytest.mark.parametrize(
        ("kind", "values"),
        [
            pytest.param(Integer, [-10, 9, 10, 100], id="integer"),
            pytest.param(Double, [-1.5, 0.1, 0.30000000000000004, 1e22], id="double"),
            pytest.param(Date, [date(1969, 12, 31), date(2026, 1, 9), date(2026, 1, 10), date(9999, 1, 1)], id="date"),
            pytest.param(
                Timestamp,
                [
                    datetime(1969, 12, 31),
                    datetime(2026, 1, 1, 0, 0, 0, 1),
                    datetime(2026, 1, 1, 1),
                    datetime(9999, 1, 1),
                ],
                id="timestamp",
            ),
            pytest.param(Text, ["", "B", "a", "é'"], id="text"),
        ],
    )
    def test_a_mark_left_by_one_route_is_understood_by_the_other(
        self, bench: Bench, kind: Any, values: list[Any]
    ) -> None:
        marks = bench.table("marks", v=kind)
        rows = [(value,) for value in values]
        bench.load(marks, rows[:2], route="pushdown", mode="append", incremental_column="v")
        bench.load(marks, rows[:3], route="spark", mode="append", incremental_column="v")
        bench.load(marks, rows, route="pushdown", mode="append", incremental_column="v")
        nothing = bench.load(marks, rows, route="spark", mode="append", incremental_column="v")
        assert bench.rows(marks) == in_order(rows) and nothing.rows_inserted == 0

    @needs("append", "incremental")
    def test_a_mark_of_another_column_is_ignored(self, bench: Bench) -> None:
        numbers = bench.table("numbers", n=BigInt, m=BigInt)
        bench.load(numbers, [(5, 1)], route=bench.quick, mode="append", incremental_column="n")
        bench.load(numbers, [(1, 2)], route=bench.quick, mode="append", incremental_column="m")
        assert bench.rows(numbers) == [(1, 2), (5, 1)]
        assert bench.watermark("numbers") == ("m", "2")

    @needs("append", "incremental")
    def test_the_source_sql_may_hold_the_mark_itself(self, bench: Bench, route: RouteName) -> None:
        events = bench.table("events", seen=TimestampTZ, word=Text)
        place = bench.place(route)
        if route == "spark" and not place.speaks_sql:
            pytest.skip("the source has no SQL of its own")
        query = f"SELECT seen, word FROM {place.sql_name('src_events')} WHERE seen > $watermark;"

        def newer(conn: object) -> str:
            return query

        for rows in ([(day(1), "a"), (day(2), "b")], [(day(1), "x"), (day(2), "y"), (day(3), "c")]):
            bench.put(events, rows, route=route)
            bench.pipeline(events, route=route, mode="append", function=newer, incremental_column="seen").sync()
        assert bench.rows(events) == [(day(1), "a"), (day(2), "b"), (day(3), "c")]
