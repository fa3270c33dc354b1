"""Markers as they are written, and what each means for one value, by the documented table."""

from __future__ import annotations

import sqlite3
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest

from ematix_flow import normalize as n
from ematix_flow.backends import sqlite_functions
from ematix_flow.declare.columns import BigInt, ColumnType, Double, Numeric, Text, TimestampTZ
from ematix_flow.errors import InvalidDeclaration
from ematix_flow.plan.expressions import ColumnExpr, NotPushable, compile_column
from ematix_flow.plan.user_sql import split_at_user_sql, with_column


def meaning(value: Any, kind: ColumnType, *markers: n.Normalizer) -> Any:
    """The result in SQLite, which calls the model."""
    compiled = compile_column("sqlite", markers, ColumnExpr("t.v", kind), name="v")
    assert isinstance(compiled, ColumnExpr), compiled
    connection = sqlite3.connect(":memory:")
    sqlite_functions.register(connection)
    return connection.execute(f"SELECT {compiled.sql} FROM (SELECT ? AS v) AS t", (value,)).fetchone()[0]


@pytest.mark.parametrize(
    ("markers", "value", "expected"),
    [
        ((n.trim(),), "  a\t ", "a\t"),
        ((n.lower(), n.trim()), " ÀB ", "àb"),
        ((n.upper(),), "straße", "STRASSE"),
        ((n.empty_to_null(),), "", None),
        ((n.empty_to_null(),), "  ", "  "),
        ((n.empty_to_null(), n.trim()), "  ", ""),
        ((n.whitespace_to_null(),), "   ", None),
        ((n.whitespace_to_null(),), " x ", "x"),
        ((n.replace("a", "b"),), "aXa", "bXb"),
        ((n.regex_replace(r"(\d+)-(\d+)", r"\2/\1"),), "1-2 3-4", "2/1 4/3"),
        ((n.regex_replace("a", "b", ""),), "aa", "ba"),
        ((n.regex_replace("a", "$1", "gi"),), "aA", "$1$1"),
        ((n.truncate(3),), "日本語です", "日本語"),
        ((n.email_normalize(),), " Foo@X.ORG ", "foo@x.org"),
        ((n.phone_normalize(),), "+49 (0)30-12٣", "+4903012"),
        ((n.parse_timestamp(),), "2026-01-02T03:04:05", "2026-01-02T03:04:05.000000Z"),
        ((n.parse_timestamp(),), "2026-01-02T03:04:05+02:00", "2026-01-02T01:04:05.000000Z"),
        ((n.parse_timestamp(),), "2026-01-02T03:04:05.123Z", "2026-01-02T03:04:05.123000Z"),
        ((n.parse_timestamp(),), "2026-02-31", None),
        ((n.parse_timestamp(),), "01/02/2026", "2026-01-02T00:00:00.000000Z"),
        ((n.parse_timestamp(on_failure="default", default=date(2000, 1, 1)),), None, "2000-01-01T00:00:00.000000Z"),
        ((n.parse_date(),), "20260102", "2026-01-02"),
        ((n.parse_int(),), "-012", -12),
        ((n.parse_int(),), " 12", None),
        ((n.parse_int(),), "+12", None),
        ((n.parse_int(),), "99999999999999999999", None),
        ((n.parse_int("default", 0),), "x", 0),
        ((n.parse_numeric(10, 2),), "1.005", "1.01"),
        ((n.parse_numeric(4, 2),), "99.995", None),
        ((n.parse_bool(),), "YES", 1),
        ((n.parse_bool(),), "n", 0),
        ((n.parse_bool(),), "maybe", None),
        ((n.default("x"),), None, "x"),
        ((n.nullif("N/A"),), "N/A", None),
        ((n.sql("upper(col) || 'col'"),), "a", "Acol"),
        ((n.derive("v || '!'"), n.sql("col || col")), "a", "a!a!"),
    ],
    ids=repr,
)
def test_the_documented_meaning_of_text_markers(markers: tuple[n.Normalizer, ...], value: Any, expected: Any) -> None:
    assert meaning(value, Text(), *markers) == expected


@pytest.mark.parametrize(
    ("marker", "kind", "value", "expected"),
    [
        (n.round(1), Numeric(5, 2), "-1.25", "-1.3"),
        (n.round(2), Double(), 2.675, 2.68),
        (n.round(-2), BigInt(), 150, 200),
        (n.clamp(0, 10), BigInt(), None, None),
        (n.clamp(0, 10), BigInt(), 11, 10),
        (n.clamp(0, 1.5), Numeric(5, 2), "2.00", "1.5"),
        (n.nullif(0), Numeric(5, 2), "0.00", None),
        (n.date_trunc("week"), TimestampTZ(), "2026-01-02T03:04:05.000000Z", "2025-12-29T00:00:00.000000Z"),
        (n.to_timezone("UTC"), TimestampTZ(), "2026-01-02T03:04:05.000000Z", "2026-01-02T03:04:05.000000"),
        (n.parse_timestamp(), TimestampTZ(), "2026-01-02T03:04:05.000000Z", "2026-01-02T03:04:05.000000Z"),
    ],
    ids=repr,
)
def test_the_documented_meaning_of_numbers_and_times(
    marker: n.Normalizer, kind: ColumnType, value: Any, expected: Any
) -> None:
    assert meaning(value, kind, marker) == expected


def test_null_stays_null_through_every_text_marker() -> None:
    markers = (n.trim(), n.lower(), n.upper(), n.replace("a", "b"), n.regex_replace("a", "b"), n.truncate(1))
    assert meaning(None, Text(), *markers, n.email_normalize(), n.phone_normalize(), n.parse_int(), n.round(0)) is None


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: n.default(None), "cannot be None"),  # type: ignore[arg-type]
        (lambda: n.not_null_or([1]), "not a constant"),  # type: ignore[arg-type]
        (lambda: n.default(float("nan")), "finite"),
        (lambda: n.nullif(None), "cannot be None"),  # type: ignore[arg-type]
        (lambda: n.parse_timestamp("YYYY", formats=["YYYY"]), "not both"),
        (lambda: n.parse_timestamp(formats=[]), "empty"),
        (lambda: n.parse_timestamp(default="2026-01-01"), "needs on_failure='default'"),
        (lambda: n.parse_date(on_failure="default"), "needs default="),
        (lambda: n.parse_timestamp(on_failure="error"), "exactly one format"),
        (lambda: n.parse_int("ignore"), "is not known"),  # type: ignore[arg-type]
        (lambda: n.parse_int("default", "7"), "whole number"),  # type: ignore[arg-type]
        (lambda: n.parse_int("default", 2**63), "between"),
        (lambda: n.parse_numeric(39, 2), "between 1 and 38"),
        (lambda: n.parse_numeric(4, 5), "between 0 and 4"),
        (lambda: n.parse_numeric(4, 2, "default", 123), "does not fit"),
        (lambda: n.parse_bool(("x",), ("X",)), "both true and false"),
        (lambda: n.parse_bool("true"), "tuple of words"),
        (lambda: n.replace("", "x"), "old is empty"),
        (lambda: n.replace("\x00", "x"), "cannot hold"),
        (lambda: n.regex_replace("a", "b", "x"), "flags='x'"),
        (lambda: n.regex_replace("(a", "b"), "not a regular expression"),
        (lambda: n.regex_replace("a", r"\1"), "has 0"),
        (lambda: n.regex_replace("a", r"\q"), "backslash"),
        (lambda: n.truncate(-1), "at least 0"),
        (lambda: n.truncate(True), "whole number"),
        (lambda: n.to_timezone("Europe/Berln"), "Europe/Berlin"),
        (lambda: n.date_trunc("decade"), "is not known"),  # type: ignore[arg-type]
        (lambda: n.round(1.5), "whole number"),  # type: ignore[arg-type]
        (lambda: n.clamp(2, 1), "above"),
        (lambda: n.clamp(1, date(2026, 1, 1)), "cannot be compared"),
        (lambda: n.clamp("a", "b"), "neither a number nor a time"),
        (lambda: n.sql(" ; "), "empty"),
    ],
)
def test_wrong_arguments_are_value_errors_where_they_are_written(make: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        make()
    assert isinstance(caught.value, InvalidDeclaration)


def test_markers_show_how_they_were_written() -> None:
    assert [
        repr(marker)
        for marker in (
            n.trim(),
            n.regex_replace("a", "b"),
            n.regex_replace("a", "b", "i"),
            n.parse_int("default", 0),
            n.parse_numeric(12, 2),
            n.parse_timestamp(),
            n.parse_timestamp("YYYY-MM-DD", on_failure="error"),
            n.default("x"),
            n.not_null_or(1),
            n.date_trunc("days"),  # type: ignore[arg-type]
        )
    ] == [
        "trim()",
        "regex_replace('a', 'b')",
        "regex_replace('a', 'b', flags='i')",
        "parse_int(on_failure='default', default=0)",
        "parse_numeric(12, 2)",
        "parse_timestamp()",
        "parse_timestamp('YYYY-MM-DD', on_failure='error')",
        "default('x')",
        "not_null_or(1)",
        "date_trunc('day')",
    ]


def test_markers_compare_by_what_they_say() -> None:
    assert n.default("x") == n.default("x")
    assert n.default("x") != n.not_null_or("x")
    assert n.trim() != n.lower()
    assert len({n.trim(), n.trim(), n.parse_timestamp(), n.parse_timestamp()}) == 2


def test_defaults_are_kept_as_the_type_they_become() -> None:
    assert n.parse_numeric(5, 2, "default", 1.5).default == Decimal("1.50")  # type: ignore[attr-defined]
    assert n.parse_date(on_failure="default", default=datetime(2026, 1, 2, 3)).default == date(2026, 1, 2)  # type: ignore[attr-defined]


def test_postgres_refuses_what_it_would_do_otherwise_and_says_why() -> None:
    refused = {
        n.to_timezone("Europe/Berlin"): TimestampTZ(),
        n.round(1): Double(),
        n.regex_replace("a|ab", "x"): Text(),
        n.trim(): Double(),
        n.lower(): None,
    }
    for marker, kind in refused.items():
        found = compile_column("postgres", (marker,), ColumnExpr("v", kind))
        assert isinstance(found, NotPushable) and found.reason, marker


def test_the_word_col_is_replaced_only_where_it_is_a_column() -> None:
    written = """coalesce(col, 'col', "col", t.col, $$col$$, column, COL) /* col */ -- col"""
    assert with_column(written, "X") == """coalesce(X, 'col', "col", t.col, $$col$$, column, X) /* col */ -- col"""


def test_what_precedes_the_users_sql_goes_to_the_source_with_it() -> None:
    chain = (n.trim(), n.sql("col"), n.lower())
    assert split_at_user_sql(chain) == (chain[:2], chain[2:])
    assert split_at_user_sql((n.trim(),)) == ((), (n.trim(),))
