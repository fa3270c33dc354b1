"""Sources: what a pipeline's function may take and give, how columns find each other, what happens to rows first."""

from __future__ import annotations

from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Annotated, Any

import pytest

from ematix_flow.declare import normalizers as marker
from ematix_flow.declare.columns import (
    BigInt,
    Boolean,
    Date,
    Double,
    Numeric,
    Text,
    Timestamp,
    TimestampTZ,
)
from ematix_flow.declare.keys import pk
from ematix_flow.declare.source import BatchSource
from ematix_flow.declare.steps import deduplicate_by, filter_where, limit, sample_pct
from ematix_flow.declare.table import table_spec
from ematix_flow.errors import InvalidSource, MissingSourceColumn, StepFailed, UnknownColumn, WrongSourceType
from ematix_flow.plan.expressions import ColumnExpr, compile_column
from ematix_flow.testing.bench import Bench, RouteName, Table
from ematix_flow.testing.endpoints import Row, SqlEndpoint
from ematix_flow.testing.gaps import needs

MONEY: Any = Numeric[8, 2]  # type: ignore[misc]  # a type made by subscript is no generic to mypy


def words(bench: Bench) -> Table:
    """A small table: a number and a word."""
    return bench.table("words", n=BigInt, word=Text | None)


class Sources:
    """Every form of a pipeline function."""

    @needs("append")
    def test_a_source_table_is_read_by_name_and_renamed_by_the_map(self, bench: Bench, route: RouteName) -> None:
        # Another order, another name, and one column more than declared.
        source = {"extra": Text(), "the word": Text(), "n": BigInt()}
        rows = [("x", "one", 1), ("y", None, 2)]
        table = words(bench)
        bench.load(table, rows, route=route, mode="append", columns=source, column_map={"word": "the word"})
        assert bench.rows(table) == [(1, "one"), (2, None)]

    @needs("append")
    def test_a_column_the_source_lacks_is_named(self, bench: Bench, route: RouteName) -> None:
        table = words(bench)
        with pytest.raises(MissingSourceColumn, match="'word'") as caught:
            bench.load(table, [(1, "x")], route=route, mode="append", columns={"n": BigInt(), "wort": Text()})
        assert "wort" in (caught.value.fix or "")
        assert bench.target.shape("words") is None
        assert [run["status"] for run in bench.runs("words")] == ["failed"]
        with pytest.raises(UnknownColumn, match="'werd'"):
            bench.pipeline(table, route=route, mode="append", column_map={"werd": "word"})

    @needs("append", "sql")
    def test_the_function_may_take_connections_and_give_sql(self, bench: Bench) -> None:
        table = words(bench)
        bench.put(table, [(1, "one"), (2, "two")], route=bench.quick, place=bench.target)
        name = bench.target.sql_name("src_words")
        seen: list[str] = []

        def with_one(conn: Any) -> str:
            highest = conn.fetch_scalar_int(f"SELECT max(n) FROM {name}")
            return f"SELECT n, word FROM {name} WHERE n = {highest};  "

        def with_two(source: Any, target: Any) -> str:
            seen.extend((source.dialect(), target.dialect()))
            return f"SELECT n, word FROM {name} WHERE n = 1"

        async def waiting(conn: Any) -> str:
            return f"SELECT n + 10 AS n, word FROM {name} WHERE n = 1"

        here: dict[str, Any] = {"route": bench.quick, "place": bench.target}
        for function in (with_one, with_two, waiting):
            bench.pipeline(table, mode="append", function=function, name=function.__name__, **here).sync()
        assert bench.rows(table) == [(1, "one"), (2, "two"), (11, "one")]
        assert seen == [bench.database.dialect.name] * 2

    @needs("append")
    def test_the_function_is_given_the_source_and_its_sql_beats_the_source_table(self, bench: Bench) -> None:
        table = words(bench)
        if not isinstance(bench.source, SqlEndpoint):
            pytest.skip("the source has no SQL of its own")
        bench.put(table, [(1, "one"), (2, "two")], route="spark")
        name = bench.source.sql_name("src_words")
        seen: list[str] = []

        def chosen(conn: Any) -> str:
            seen.append(conn.dialect())
            return f"SELECT word, n FROM {name} WHERE n > 1"

        pipeline = bench.pipeline(
            table,
            route="spark",
            mode="append",
            function=chosen,
            source_table=f"{bench.source.schema}.nowhere",
        )
        pipeline.sync()
        assert bench.rows(table) == [(2, "two")]
        assert seen == [bench.source.dialect.name]

    @needs("append")
    def test_the_function_may_give_a_source_of_another_connection(self, bench: Bench) -> None:
        table = words(bench)
        if not isinstance(bench.source, SqlEndpoint):
            pytest.skip("the source has no SQL of its own")
        bench.put(table, [(1, "elsewhere")], route="spark")
        bench.put(table, [(2, "here")], route=bench.quick, place=bench.target)

        def query(conn: Any) -> BatchSource:
            sql = f"SELECT n, word FROM {bench.source.sql_name('src_words')};"
            return BatchSource(bench.source.connection, query=sql)

        def whole_table(conn: Any) -> BatchSource:
            return BatchSource(bench.source.connection, schema=bench.source.schema, table="src_words")

        def handed(conn: Any) -> BatchSource:
            return BatchSource(conn, query=f"SELECT n, word FROM {bench.target.sql_name('src_words')}")

        for function in (query, whole_table, handed):
            pipeline = bench.pipeline(
                table,
                route=bench.quick,
                mode="append",
                function=function,
                name=function.__name__,
                engine="auto",
                place=bench.target,
            )
            pipeline.sync()
        assert bench.rows(table) == [(1, "elsewhere"), (1, "elsewhere"), (2, "here")]
        with pytest.raises(InvalidSource, match="transforms_pre"):
            bench.pipeline(
                table,
                route=bench.quick,
                mode="append",
                function=handed,
                name="handed",
                transforms_pre=[limit(1)],
                place=bench.target,
            ).sync()

    @needs("append")
    def test_the_function_may_give_a_data_frame(self, bench: Bench) -> None:
        table = bench.table("words", n=BigInt, word=Text | None, at=TimestampTZ)
        moment = datetime(2026, 3, 1, 6, 0, 0, 250, tzinfo=timezone.utc)

        def pandas_rows(conn: Any) -> Any:
            import pandas

            return pandas.DataFrame({"word": ["one", None], "n": [1, 2], "at": [moment, moment]})

        def spark_rows(conn: Any) -> Any:
            from ematix_flow.testing.spark import local_spark

            return local_spark().createDataFrame([(3, "three", moment, 0)], "n int, word string, at timestamp, x int")

        for function in (pandas_rows, spark_rows):
            pipeline = bench.pipeline(
                table, route="spark", mode="append", function=function, name=function.__name__, engine="auto"
            )
            assert pipeline.sync().path == "cross_db"
        assert bench.rows(table) == [(1, "one", moment), (2, None, moment), (3, "three", moment)]

    @needs("append")
    def test_a_function_that_gives_a_result_loads_nothing(self, bench: Bench) -> None:
        table = words(bench)
        pipeline = bench.pipeline(table, route=bench.quick, mode="append", function=lambda conn: {"moved": 3})
        assert pipeline.sync() == {"moved": 3}
        assert bench.target.shape("words") is None

    @needs("append")
    def test_a_function_that_gives_nothing_or_nonsense_or_raises_is_told_so(self, bench: Bench) -> None:
        table = words(bench)

        def nothing(conn: Any) -> None:
            return None

        def nonsense(conn: Any) -> Any:
            return 42

        def raising(conn: Any) -> str:
            raise KeyError("oh")

        expected = {nothing: InvalidSource, nonsense: WrongSourceType, raising: StepFailed}
        for function, error in expected.items():
            pipeline = bench.pipeline(
                table, route=bench.quick, mode="append", function=function, name=function.__name__
            )
            with pytest.raises(error, match=function.__name__):
                pipeline.sync()
        assert bench.target.shape("words") is None


class RowSteps:
    """`transforms_pre`, the same on both routes."""

    ROWS = [(3, "c"), (1, "a"), (2, None), (1, "b"), (3, "C"), (4, "d")]

    @needs("merge")
    def test_deduplicate_by_keeps_the_first_row_of_each_key(self, bench: Bench, route: RouteName) -> None:
        table = words(bench)
        steps = [deduplicate_by("n", order_by="word desc")]
        result = bench.load(table, self.ROWS, route=route, mode="merge", keys=("n",), transforms_pre=steps)
        assert result.rows_inserted == 4
        assert bench.rows(table) == [(1, "b"), (2, None), (3, "c"), (4, "d")]

    @needs("append")
    def test_steps_run_in_order_after_the_markers(self, bench: Bench, route: RouteName) -> None:
        shouted: Any = Annotated[Text | None, marker.upper()]
        if route == "pushdown" and not is_pushable(bench, "word", (shouted, Text(), [], [])):
            a, b, c, d = (marker.replace(letter, letter.upper()) for letter in "abcd")
            shouted = Annotated[Text | None, a, b, c, d]
        table = bench.table("words", n=BigInt, word=shouted)
        steps = [filter_where("word >= 'B'"), deduplicate_by(keys=("word",)), limit(10), sample_pct(1.0)]
        bench.load(table, self.ROWS, route=route, mode="append", transforms_pre=steps)
        assert bench.rows(table) == [(1, "B"), (3, "C"), (4, "D")]

    @needs("truncate")
    def test_limit_and_sample_keep_a_part(self, bench: Bench, route: RouteName) -> None:
        table = words(bench)
        for steps, expected in (([limit(2)], 2), ([limit(0)], 0), ([sample_pct(0)], 0), ([sample_pct(0.5)], None)):
            result = bench.load(table, self.ROWS, route=route, mode="truncate", transforms_pre=steps)
            assert expected in (None, result.rows_inserted) and result.rows_inserted <= len(self.ROWS)
            assert set(bench.rows(table)) <= set(self.ROWS)

    @needs("append")
    def test_a_decimal_order_is_by_value(self, bench: Bench, route: RouteName) -> None:
        table = bench.table("prices", item=BigInt, price=MONEY)
        steps = [deduplicate_by("item", order_by="price desc")]
        rows = [(1, Decimal("9.50")), (1, Decimal("10.00")), (1, Decimal("-11.00"))]
        bench.load(table, rows, route=route, mode="append", transforms_pre=steps)
        assert bench.rows(table) == [(1, Decimal("10.00"))]


UTC = timezone.utc
MARKED: dict[str, tuple[Any, Any, list[Any], list[Any]]] = {
    # column: declaration, type in the source, values there, values expected here
    "trimmed": (Annotated[Text | None, marker.trim()], Text(), [" a ", "\tb", None], ["a", "\tb", None]),
    "lowered": (Annotated[Text | None, marker.lower()], Text(), ["ÀB", "", None], ["àb", "", None]),
    "uppered": (Annotated[Text | None, marker.upper()], Text(), ["àb", "", None], ["ÀB", "", None]),
    "emptied": (Annotated[Text | None, marker.empty_to_null()], Text(), ["", " ", "x"], [None, " ", "x"]),
    "blanked": (Annotated[Text | None, marker.whitespace_to_null()], Text(), ["", "  ", " x "], [None, None, "x"]),
    "replaced": (Annotated[Text | None, marker.replace(".", "-")], Text(), ["a.b.", "", None], ["a-b-", "", None]),
    "rewritten": (
        Annotated[Text | None, marker.regex_replace(r"([a-z])([0-9])", r"\2$\1")],
        Text(),
        ["a1 b2", "A1", None],
        ["1$a 2$b", "A1", None],
    ),
    "cut": (Annotated[Text | None, marker.truncate(3)], Text(), ["日本語x", "ab", None], ["日本語", "ab", None]),
    "mail": (
        Annotated[Text | None, marker.email_normalize()],
        Text(),
        [" A@X.org ", "b@y", None],
        ["a@x.org", "b@y", None],
    ),
    "phone": (
        Annotated[Text | None, marker.phone_normalize()],
        Text(),
        ["+49 (30) 12-34", "n/a", None],
        ["+49301234", "", None],
    ),
    "instant": (
        Annotated[TimestampTZ | None, marker.parse_timestamp()],
        Text(),
        ["2026-01-02T03:04:05", "2026-01-02T03:04:05+02", "2026-13-45"],
        [datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC), None],
    ),
    "parsed_day": (
        Annotated[Date | None, marker.parse_date()],
        Text(),
        ["20260102", "03/04/2026", "2026-02-31"],
        [date(2026, 1, 2), date(2026, 3, 4), None],
    ),
    "local": (
        Annotated[Timestamp | None, marker.to_timezone("Europe/Berlin")],
        TimestampTZ(),
        [datetime(2026, 3, 29, 0, 30, tzinfo=UTC), datetime(2026, 3, 29, 1, 30, tzinfo=UTC), None],
        [datetime(2026, 3, 29, 1, 30), datetime(2026, 3, 29, 3, 30), None],
    ),
    "month": (
        Annotated[TimestampTZ | None, marker.date_trunc("month")],
        TimestampTZ(),
        [datetime(2026, 3, 29, 1, 30, tzinfo=UTC), datetime(1969, 12, 31, 23, tzinfo=UTC), None],
        [datetime(2026, 3, 1, tzinfo=UTC), datetime(1969, 12, 1, tzinfo=UTC), None],
    ),
    "whole": (
        Annotated[BigInt | None, marker.parse_int(on_failure="default", default=-1)],
        Text(),
        ["-12", " 1", "99999999999999999999"],
        [-12, -1, -1],
    ),
    "exact": (
        Annotated[MONEY | None, marker.parse_numeric(8, 2)],
        Text(),
        ["1.005", "-1.005", "1e3"],
        [Decimal("1.01"), Decimal("-1.01"), None],
    ),
    "rounded": (
        Annotated[Double | None, marker.round(1)],
        Double(),
        [2.25, -1.25, None],
        [2.3, -1.3, None],
    ),
    "clamped": (Annotated[BigInt | None, marker.clamp(0, 10)], BigInt(), [-5, 50, None], [0, 10, None]),
    "yes": (Annotated[Boolean | None, marker.parse_bool()], Text(), ["YES", "0", "maybe"], [True, False, None]),
    "filled": (Annotated[Text, marker.default("none")], Text(), [None, "", "x"], ["none", "", "x"]),
    "never_null": (Annotated[BigInt, marker.not_null_or(0)], BigInt(), [None, 1, 2], [0, 1, 2]),
    "nulled": (Annotated[Text | None, marker.nullif("n/a")], Text(), ["n/a", "N/A", None], [None, "N/A", None]),
    "own": (
        Annotated[Text | None, marker.trim(), marker.sql("col || '!'")],
        Text(),
        [" a ", "", None],
        ["a!", "!", None],
    ),
    "chained": (
        Annotated[Text | None, marker.whitespace_to_null(), marker.lower(), marker.default("?")],
        Text(),
        ["  ", " ÀB ", None],
        ["?", "àb", "?"],
    ),
}


class Markers:
    """Every normalizer in one wide table: one meaning, whatever the route and the source."""

    @needs("append")
    def test_all_markers_mean_the_same_on_every_route(self, bench: Bench, route: RouteName) -> None:
        # Some are never left to a database, such as time zones, whose rules differ between releases.
        chosen = {n: m for n, m in MARKED.items() if route == "spark" or is_pushable(bench, n, m)}
        declared = {name: declaration for name, (declaration, *_) in chosen.items()}
        source = {"n": BigInt(), **{name: kind for name, (_, kind, _, _) in chosen.items()}}
        rows = [(n, *(given[n] for _, _, given, _ in chosen.values())) for n in range(3)]
        expected: list[Row] = [(n, *(wanted[n] for _, _, _, wanted in chosen.values())) for n in range(3)]
        derived = marker.derive("trimmed || '/' || uppered")
        asked: Any = (Annotated[Text | None, derived], Text(), [], [])
        if bench.place(route).speaks_sql and (route == "spark" or is_pushable(bench, "derived", asked)):
            declared["derived"] = Annotated[Text | None, derived, marker.trim()]
            expected = [(*row, end) for row, end in zip(expected, ["a /àb", "\tb/", None], strict=True)]
        table = bench.table("marked", {"n": Annotated[BigInt, pk()], **declared})
        bench.load(table, rows, route=route, mode="append", columns=source)
        assert bench.rows(table) == expected


def is_pushable(bench: Bench, name: str, marked: tuple[Any, Any, list[Any], list[Any]]) -> bool:
    """Whether the planner lets the target apply the markers of a column itself."""
    if not bench.target.speaks_sql:
        return True  # such a target must refuse the whole load
    spec = table_spec(bench.table("asked", {name: marked[0]})).column(name)
    dialect = bench.database.dialect
    found = compile_column(dialect.name, spec.normalizers, ColumnExpr("x", marked[1]))
    return isinstance(found, ColumnExpr) and dialect.fit(found.sql, found.type, spec.type, name) is not None
