"""One reading for several targets: what it asks of the source, and how each target finds its rows in it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest

from ematix_flow.backends.postgres_dialect import PostgresDialect
from ematix_flow.contracts.plans import SourceQuery, Stamp
from ematix_flow.contracts.shapes import ColumnShape, TableRef
from ematix_flow.declare.columns import BigInt, ColumnType, Date, Double, Numeric, Text, TimestampTZ
from ematix_flow.declare.pipeline import PipelineSpec
from ematix_flow.declare.registry import SourceLocation
from ematix_flow.declare.table import ColumnSpec, TableSpec
from ematix_flow.declare.target import TargetSpec
from ematix_flow.normalize import derive, filter_where, lower, round as rounded
from ematix_flow.plan.batch import SourceSide, TargetSide, plan_load
from ematix_flow.plan.joint import JointReading, Member, join_readings, lowest_mark

SHAPES = (
    ColumnShape("id", BigInt(), "bigint"),
    ColumnShape("name", Text(), "text"),
    ColumnShape("amount", None, "numeric"),
    ColumnShape("at", TimestampTZ(), "timestamp with time zone"),
)
ID, NAME = ColumnSpec("id", BigInt()), ColumnSpec("name", Text(), nullable=True)
AT = ColumnSpec("at", TimestampTZ())


def target(table: str, *columns: ColumnSpec, **options: Any) -> TargetSpec:
    """A table on another system than the source."""
    return TargetSpec(table=TableSpec("main", table, columns), connection="there", mode="append", **options)


def joined(
    *targets: TargetSpec,
    marks: tuple[str | None, ...] = (),
    sql: str = "SELECT * FROM rows",
    is_sql: bool = True,
    **options: Any,
) -> tuple[JointReading | None, list[Member]]:
    """The joint reading of targets at their marks, and the members it was made from."""
    spec = PipelineSpec(
        name="fan",
        function=lambda: None,
        parameters=0,
        targets=targets,
        is_fan_out=True,
        where=SourceLocation("here.py", 1, "fan"),
        **options,
    )
    query = SourceQuery(sql=sql) if is_sql else SourceQuery(table=TableRef("raw", "rows"))
    source = SourceSide(query, PostgresDialect(), SHAPES) if is_sql else SourceSide(query)
    members = []
    for one, mark in zip(targets, marks or (None,) * len(targets), strict=True):
        plan = plan_load(
            spec,
            one,
            source,
            TargetSide(TableRef("main", one.table.name), frozenset({"append"}), "files"),
            stamp=Stamp("run", datetime(2026, 3, 1, tzinfo=timezone.utc)),
            stored_mark=None if mark is None else (one.incremental_column or "", mark),
        )
        members.append(Member(plan, source))
    return join_readings(spec, members[0], members[1:]), members


def test_plain_columns_are_read_by_the_query_as_it_is() -> None:
    joint, members = joined(target("a", ID, NAME), target("b", NAME, AT))
    assert joint is not None and joint.reading.query.sql == "SELECT * FROM rows"
    assert all(joint.share_of(member.plan) for member in members)


def test_raw_and_cleaned_values_of_one_column_come_from_one_reading() -> None:
    cleaned = replace(NAME, normalizers=(lower(),))
    joint, (raw, clean) = joined(target("a", ID, NAME), target("b", ID, cleaned))
    assert joint is not None and joint.reading.query.sql == "SELECT * FROM rows"
    for member, pending in ((raw, ()), (clean, (lower(),))):
        share = joint.share_of(member.plan)
        assert share is not None
        assert share.reading.renamed.get("name", "name") == "name"
        assert share.reading.pending.get("name", ()) == pending


def test_a_number_wanted_exactly_and_as_a_value_is_asked_for_twice_in_one_query() -> None:
    exact = ColumnSpec("amount", Numeric(38, 20))
    changed = ColumnSpec("amount", Numeric(10, 1), normalizers=(rounded(1),))
    joint, (_, second) = joined(target("a", ID, exact), target("b", ID, changed))
    assert joint is not None and (joint.reading.query.sql or "").count('src."amount"') == 2
    share = joint.share_of(second.plan)
    assert share is not None and share.reading.renamed["amount"].startswith("ematix_joint_")


def test_the_users_own_sql_of_several_targets_stands_in_one_query() -> None:
    one = ColumnSpec("shown", Text(), normalizers=(derive("'#' || id"), lower()))
    other = ColumnSpec("shown", Text(), normalizers=(derive("id || '!'"),))
    joint, (first, second) = joined(target("a", ID, one), target("b", ID, other))
    assert joint is not None and joint.reading.query.sql is not None
    assert "'#' || id" in joint.reading.query.sql and "id || '!'" in joint.reading.query.sql
    shares = [joint.share_of(member.plan) for member in (first, second)]
    assert all(shares)
    assert shares[0].reading.pending["shown"] == (lower(),) and "shown" not in shares[1].reading.pending


def test_a_condition_cannot_mean_two_things_at_once() -> None:
    one = ColumnSpec("shown", BigInt(), normalizers=(derive("id"),))
    other = ColumnSpec("shown", BigInt(), normalizers=(derive("id + 1"),))
    steps = (filter_where("shown > 1"),)
    assert joined(target("a", ID, one), target("b", ID, other), transforms_pre=steps)[0] is None
    assert joined(target("a", ID, one), target("b", one), transforms_pre=steps)[0] is not None


def test_a_column_of_a_file_is_read_in_one_way() -> None:
    exact, loose = ColumnSpec("amount", Numeric(10, 2)), ColumnSpec("amount", Double())
    assert joined(target("a", ID, exact), target("b", ID, loose), is_sql=False)[0] is None
    assert joined(target("a", ID, exact), target("b", ID, exact), is_sql=False)[0] is not None


def test_the_reading_starts_at_the_lowest_mark_and_each_target_at_its_own() -> None:
    a, b = (target(name, ID, AT, incremental_column="at") for name in "ab")
    marks = ("2026-03-05T00:00:00.000000Z", "2026-03-04T00:00:00.000000Z")
    joint, members = joined(a, b, marks=marks)
    assert joint is not None and joint.floor == marks[1]
    assert marks[1] in (joint.reading.query.sql or "") and marks[0] not in (joint.reading.query.sql or "")
    for member, mark in zip(members, marks, strict=True):
        share = joint.share_of(member.plan)
        assert share is not None and share.newer_than is not None and share.newer_than.last_value == mark


def test_a_target_without_a_mark_makes_the_reading_whole() -> None:
    a, b = (target(name, ID, AT, incremental_column="at") for name in "ab")
    joint, (_, new) = joined(a, b, marks=("2026-03-05T00:00:00.000000Z", None))
    assert joint is not None and joint.floor is None and joint.reading.query.sql == "SELECT * FROM rows"
    share = joint.share_of(new.plan)
    assert share is not None and share.newer_than is None


def test_a_mark_that_was_set_back_in_the_meantime_needs_a_reading_of_its_own() -> None:
    a, b = (target(name, ID, incremental_column="id") for name in "ab")
    joint, (_, second) = joined(a, b, marks=("10", "9"))
    assert joint is not None and joint.floor == "9"
    assert second.plan.watermark is not None
    for mark, is_held in (("11", True), ("9", True), ("8", False), (None, False)):
        moved = replace(second.plan, watermark=replace(second.plan.watermark, last_value=mark))
        assert (joint.share_of(moved) is not None) is is_held


def test_the_watermark_in_the_sql_is_the_lowest_and_needs_one_type() -> None:
    sql = "SELECT * FROM rows WHERE id > $watermark"
    a, b = (target(name, ID, incremental_column="id") for name in "ab")
    joint, _ = joined(a, b, marks=("10", "9"), sql=sql)
    assert joint is not None and "WHERE id > '9'::bigint" in (joint.reading.query.sql or "")
    text = target("c", ColumnSpec("id", Text()), incremental_column="id")
    assert joined(a, text, marks=("10", "9"), sql=sql)[0] is None


@pytest.mark.parametrize(
    ("marks", "kind", "lowest"),
    [
        (("10", "9"), BigInt(), "9"),
        (("10", "9"), Text(), "10"),
        (("1.5", "-2.25"), Numeric(10, 2), "-2.25"),
        (("1e3", "20.5"), Double(), "20.5"),
        (("nan", "1.0"), Double(), None),
        (("2026-03-02", "2026-03-10"), Date(), "2026-03-02"),
        (("2026-03-02T00:00:00.000000Z", "2026-03-01T23:59:59.999999Z"), TimestampTZ(), "2026-03-01T23:59:59.999999Z"),
        (("12026-03-02T00:00:00.000000Z", "2026-03-01T00:00:00.000000Z"), TimestampTZ(), None),
        (("é", "z"), Text(), "z"),
    ],
)
def test_marks_are_ordered_by_their_type(marks: tuple[str, ...], kind: ColumnType, lowest: str | None) -> None:
    assert lowest_mark(marks, kind) == lowest
