"""DataFrames in and out of connections: values, errors, and that Spark stays out where nothing needs it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import ematix_flow.df
from ematix_flow import Annotated, BigInt, Numeric, String, Text, TimestampTZ, ematix, pk
from ematix_flow.backends.catalog import open_backend
from ematix_flow.backends.sql import SqlBackend
from ematix_flow.config.handles import ConnectionHandle, connect
from ematix_flow.connections import (
    DeltaLocalConnection,
    DuckDBConnection,
    ObjectStoreLocalConnection,
    SQLiteConnection,
)
from ematix_flow.contracts.runtime import StepStatus
from ematix_flow.declare.pipeline import PipelineSpec
from ematix_flow.errors import FlowError
from ematix_flow.normalize import trim
from ematix_flow.run import runner
from ematix_flow.run.source_rows import LazyHandle

INSTANT = datetime(2026, 3, 1, 9, 30, 0, 123456, tzinfo=timezone.utc)
WALL = datetime(2026, 3, 1, 9, 30, 0, 654321)
SCHEMAS = {"sqlite": "main", "duckdb": "shop", "postgres": "shop", "mysql": "shop_tables"}


class Place:
    """A database of one kind, and a handle to it."""

    def __init__(self, kind: str, handle: ConnectionHandle) -> None:
        self.kind, self.handle, self.schema = kind, handle, SCHEMAS[kind]

    def table(self, name: str) -> str:
        return f"{self.schema}.{name}"

    def rows(self, name: str, columns: str = "*", order: str = "1") -> list[tuple[Any, ...]]:
        found = self.handle.query(f"SELECT {columns} FROM {self.table(name)} ORDER BY {order}")
        return [tuple(row) for row in found["rows"]]

    def arrow(self, name: str, columns: str = "*") -> pa.Table:
        backend = open_backend(self.handle.connection)
        assert isinstance(backend, SqlBackend)
        return backend.read_arrow(f"SELECT {columns} FROM {self.table(name)} ORDER BY 1")

    def columns(self, name: str) -> list[str]:
        found = self.handle.query(f"SELECT * FROM {self.table(name)}", max_rows=1)
        return [column["name"] for column in found["columns"]]


def place_of(kind: str, folder: Path, request: pytest.FixtureRequest) -> Place:
    if kind == "postgres":
        return Place(kind, connect("place", url=request.getfixturevalue("pg_url")))
    if kind == "mysql":
        handle = connect("place", url=request.getfixturevalue("mysql_url"))
        handle.execute("CREATE DATABASE IF NOT EXISTS shop_tables")
        for row in handle.query("SHOW TABLES IN shop_tables")["rows"]:
            handle.execute(f"DROP TABLE shop_tables.`{row[0]}`")
        return Place(kind, handle)
    return Place(kind, connect("place", url=f"{kind}:///{folder}/place.{kind}"))


@pytest.fixture(params=["sqlite", "duckdb", "postgres", "mysql"])
def place(request: pytest.FixtureRequest, tmp_project: Path) -> Iterator[Place]:
    """Each kind of database in turn."""
    found = place_of(request.param, tmp_project, request)
    yield found
    found.handle.close()


@pytest.fixture
def shop(request: pytest.FixtureRequest, tmp_project: Path) -> Iterator[Place]:
    """One database, where the kind does not matter."""
    found = place_of("sqlite", tmp_project, request)
    yield found
    found.handle.close()


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a Spark session is a failure."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("Spark was asked for")

    monkeypatch.setattr("ematix_flow.spark.batch.open_session", refuse)  # imported before it is replaced at its owner
    monkeypatch.setattr("ematix_flow.spark.session.open_session", refuse)


EVERYTHING: dict[str, list[Any]] = {
    "id": [1, 2, 3],
    "small": [1, None, -7],
    "real": [0.1, None, -2.5e300],
    "money": [Decimal("12.50"), None, Decimal("-1234567890123456.78")],
    "is_new": [True, None, False],
    "name": ["Ada", None, "Żółć 🦆 'quoted' \\ \t"],
    "born": [date(1815, 12, 10), None, date(9999, 12, 31)],
    "seen": [WALL, None, datetime(1, 1, 1)],
    "paid": [INSTANT, None, datetime(2026, 12, 31, 23, 59, 59, tzinfo=timezone.utc)],
    "raw": [b"\x00\xff", None, b""],
}
TYPES = {
    "id": pa.int64(),
    "small": pa.int16(),
    "real": pa.float64(),
    "money": pa.decimal128(20, 2),
    "is_new": pa.bool_(),
    "name": pa.string(),
    "born": pa.date32(),
    "seen": pa.timestamp("us"),
    "paid": pa.timestamp("us", tz="UTC"),
    "raw": pa.binary(),
}


def everything() -> pa.Table:
    return pa.table({name: pa.array(values, TYPES[name]) for name, values in EVERYTHING.items()})


def as_kind(table: pa.Table, kind: str) -> Any:
    if kind == "pandas":
        return table.to_pandas(types_mapper={pa.int16(): pd.Int16Dtype(), pa.bool_(): pd.BooleanDtype()}.get)
    if kind in ("polars", "lazy"):
        found = pl.from_arrow(table)
        assert isinstance(found, pl.DataFrame)
        return found if kind == "polars" else found.lazy()
    return table if kind == "table" else table.to_reader(max_chunksize=1)


# ── there and back ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["pandas", "polars", "lazy", "table", "reader"])
def test_every_kind_of_frame_arrives_exactly_without_spark(place: Place, kind: str, no_spark: None) -> None:
    result = place.handle.write_df(as_kind(everything(), kind), place.table("everything"), mode="append")
    assert result.rows_inserted == 3
    assert place.columns("everything") == list(EVERYTHING), "no column is added"
    assert place.arrow("everything").to_pydict() == EVERYTHING


def test_what_is_read_has_the_types_it_was_written_with(place: Place, no_spark: None) -> None:
    place.handle.write_df(everything(), place.table("everything"), mode="append")
    found = place.handle.to_polars(f"SELECT * FROM {place.table('everything')} ORDER BY id")
    assert found.to_dict(as_series=False) == EVERYTHING
    assert found.schema["money"] == pl.Decimal(20, 2)
    assert found.schema["paid"] == pl.Datetime("us", "UTC") and found.schema["seen"] == pl.Datetime("us")
    assert found.schema["is_new"] == pl.Boolean and found.schema["born"] == pl.Date


def test_pandas_gets_nullable_types_where_floats_would_lose_digits(place: Place, no_spark: None) -> None:
    large = 2**62 + 1
    place.handle.write_df(
        pa.table({"id": [1, 2], "big": [large, None], "is_new": [None, True]}), place.table("t"), mode="append"
    )
    found = place.handle.to_pandas(f"SELECT * FROM {place.table('t')} ORDER BY id")
    assert found["id"].dtype == "int64" and found["big"].dtype == "Int64" and found["is_new"].dtype == "boolean"
    assert found["big"][0] == large and found["big"].isna().tolist() == [False, True]
    money = place.handle.to_pandas(f"SELECT id, CAST(1.10 AS {_decimal(place)}) AS m FROM {place.table('t')}")
    assert {str(value) for value in money["m"]} == ({"1.10"} if place.kind != "sqlite" else {"1.1"})


def _decimal(place: Place) -> str:
    return "REAL" if place.kind == "sqlite" else "DECIMAL(12,2)"


def test_rows_come_in_the_order_the_query_asks_for(place: Place, no_spark: None) -> None:
    ids = [(number * 37) % 5000 for number in range(5000)]
    place.handle.write_df(pl.DataFrame({"id": ids}), place.table("t"), mode="append")
    down = place.handle.to_polars(f"SELECT id FROM {place.table('t')} ORDER BY id DESC;")
    assert down["id"].to_list() == sorted(ids, reverse=True)
    few = place.handle.to_polars(f"SELECT id FROM {place.table('t')} ORDER BY id DESC LIMIT 2")
    assert few["id"].to_list() == [4999, 4998]


def test_an_empty_answer_has_its_columns_and_types(place: Place, no_spark: None) -> None:
    place.handle.write_df(everything(), place.table("everything"), mode="append")
    found = place.handle.to_polars(f"SELECT * FROM {place.table('everything')} WHERE 1 = 0")
    assert found.height == 0 and found.columns == list(EVERYTHING)
    assert found.schema["money"] == pl.Decimal(20, 2) and found.schema["paid"] == pl.Datetime("us", "UTC")
    assert len(place.handle.to_pandas(f"SELECT * FROM {place.table('everything')} WHERE 1 = 0")) == 0


def test_an_empty_frame_makes_the_table_and_leaves_a_run(place: Place, no_spark: None) -> None:
    result = place.handle.write_df(everything().slice(0, 0), place.table("everything"), mode="append")
    assert result.rows_inserted == 0 and place.columns("everything") == list(EVERYTHING)
    assert place.handle.write_df(everything(), place.table("everything"), mode="truncate").rows_inserted == 3
    emptied = place.handle.write_df(everything().slice(0, 0), place.table("everything"), mode="truncate")
    assert emptied.rows_inserted == 0 and place.rows("everything") == []


def test_numbers_without_a_precision_are_read_exactly(request: pytest.FixtureRequest, tmp_project: Path) -> None:
    pg = place_of("postgres", tmp_project, request)
    sql = "SELECT x::numeric FROM (VALUES ('12345678901234567890.123456789'), ('-0.000000001'), (NULL), ('7')) v(x)"
    found = pg.handle.to_polars(sql)["x"].to_list()
    assert found == [Decimal("12345678901234567890.123456789"), Decimal("-0.000000001"), None, Decimal(7)]
    with pytest.raises(ValueError, match="Column 'x' holds NaN, or numbers of more than 38 digits") as caught:
        pg.handle.to_polars("SELECT '1234567890123456789012345678901234567890'::numeric AS x")
    assert "12345" not in str(caught.value)
    for odd in ("'infinity'::timestamptz", "'-infinity'::date", "'10000-01-01'::timestamp", "'0044-03-15 BC'::date"):
        with pytest.raises(ValueError, match="Column 'x' holds a time outside of the years 1 to 9999"):
            pg.handle.to_polars(f"SELECT {odd} AS x")
    with pytest.raises(ValueError, match="does not fit") as caught:
        pg.handle.to_polars("SELECT ('sec' || 'ret' || generate_series(1, 2))::int")
    assert "secret" not in str(caught.value)
    pg.handle.close()


def test_nested_values_and_all_null_columns(place: Place) -> None:
    frame = pl.DataFrame({"id": [1, 2], "tags": [["a", "b"], []], "at": [{"x": 1}, {"x": None}], "blank": [None, None]})
    place.handle.write_df(frame, place.table("t"), mode="append")
    found = place.handle.to_polars(f"SELECT id, tags, blank FROM {place.table('t')} ORDER BY id")
    assert [text.replace(" ", "") for text in found["tags"]] == ['["a","b"]', "[]"]
    assert found["blank"].to_list() == [None, None]


# ── what pandas makes of things ──────────────────────────────────────────────────────────────────────────────────────


def test_pandas_columns_keep_their_meaning(place: Place, no_spark: None) -> None:
    frame = pd.DataFrame(
        {
            "id": [1, 2, 3],
            "missing": [1.5, float("nan"), 2.0],
            "objects": pd.Series([10, None, 30], dtype=object),
            "nullable": pd.array([2**60 + 1, None, 3], dtype="Int64"),
            "sort": pd.Categorical(["x", None, "y"]),
            "money": pd.Series([Decimal("1.10"), None, Decimal("22.5")], dtype=object),
            "local": pd.to_datetime(["2026-07-01 12:00", None, "2026-01-01 12:00"]).tz_localize("Europe/Berlin"),
            "word": pd.array(["a", None, "c"], dtype="string"),
            "tiny": pd.array([1, 2, 255], dtype="uint8"),
            "huge": pd.array([1, 2, 2**64 - 1], dtype="uint64"),
        }
    )
    place.handle.write_df(frame, place.table("t"), mode="append")
    found = place.arrow("t").to_pydict()
    assert found["missing"] == [1.5, None, 2.0] and found["objects"] == [10, None, 30]
    assert found["nullable"] == [2**60 + 1, None, 3] and found["sort"] == ["x", None, "y"]
    assert found["money"] == [Decimal("1.10"), None, Decimal("22.50")]
    noon = datetime(2026, 7, 1, 10, tzinfo=timezone.utc)
    assert found["local"] == [noon, None, datetime(2026, 1, 1, 11, tzinfo=timezone.utc)]
    assert found["word"] == ["a", None, "c"] and found["tiny"] == [1, 2, 255] and found["huge"] == [1, 2, 2**64 - 1]
    more = pd.DataFrame({"id": [4], "money": pd.Series([Decimal("99999999.99")], dtype=object)})
    assert place.handle.write_df(more, place.table("t"), mode="append").rows_inserted == 1, "later ones may be longer"


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (pd.Series([1, "secret"], dtype=object), "Column 'c' .* holds 'int', 'str'"),
        (pd.Series([uuid.UUID(int=7)], dtype=object), "Column 'c' .* holds 'UUID'"),
        (pd.Series(["\ud800"], dtype=object), "Column 'c'"),
        (pd.Series([timedelta(seconds=1)]), r"Column 'c' .* duration\[ns\]"),
        (pd.Series(pd.period_range("2026", periods=2, freq="M")), "Column 'c' .* pandas.period"),
        (pd.Series(pd.to_datetime(["2026-01-01 00:00:00.000000001"])), "finer than a microsecond"),
    ],
)
def test_a_column_that_no_table_can_hold_is_named_and_its_values_are_not(shop: Place, column: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        shop.handle.write_df(pd.DataFrame({"id": range(len(column)), "c": column}), "main.t", mode="append")
    assert isinstance(caught.value, FlowError) and "secret" not in str(caught.value) and caught.value.fix


def test_frames_without_usable_names_are_refused(shop: Place) -> None:
    with pytest.raises(ValueError, match="names that are no text, such as 0"):
        shop.handle.write_df(pd.DataFrame([[1, 2]]), "main.t", mode="append")
    with pytest.raises(ValueError, match="more than one column called 'a'"):
        shop.handle.write_df(pd.DataFrame([[1, 2]], columns=["a", "a"]), "main.t", mode="append")
    with pytest.raises(ValueError, match="no columns"):
        shop.handle.write_df(pd.DataFrame(), "main.t", mode="append")


# ── the surface ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_read_df_prefers_polars_and_can_be_told(shop: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(shop.handle.read_df("SELECT 1 AS a"), pl.DataFrame)
    assert isinstance(shop.handle.read_df("SELECT 1 AS a", prefer="polars"), pl.DataFrame)
    assert isinstance(shop.handle.read_df("SELECT 1 AS a", prefer="pandas"), pd.DataFrame)
    with pytest.raises(ValueError, match="prefer must be 'auto', 'polars' or 'pandas', not 'arrow'"):
        shop.handle.read_df("SELECT 1 AS a", prefer="arrow")
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "polars" else real(name))
    assert isinstance(shop.handle.read_df("SELECT 1 AS a"), pd.DataFrame)
    with pytest.raises(ImportError, match="needs 'polars'") as caught:
        shop.handle.read_df("SELECT 1 AS a", prefer="polars")
    assert isinstance(caught.value, FlowError) and caught.value.fix == 'pip install "ematix-flow[df]"'


def test_functions_take_a_name_a_connection_or_a_handle(shop: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.handle.write_df(pl.DataFrame({"id": [7]}), "main.t", mode="append")
    monkeypatch.setenv("EMATIX_FLOW_DSN_CELLAR", shop.handle.dsn())
    lazy = LazyHandle(ematix_flow.config.resolve.resolve("cellar"))  # type: ignore[attr-defined]
    for given in ("cellar", shop.handle.connection, shop.handle, lazy):
        assert ematix_flow.df.to_polars(given, "SELECT id FROM t")["id"].to_list() == [7]
        assert ematix_flow.df.to_pandas(given, "SELECT id FROM t;")["id"].tolist() == [7]
    with pytest.raises(TypeError, match="A connection, its name or a handle is needed, not int"):
        ematix_flow.df.to_polars(7, "SELECT 1")
    with pytest.raises(TypeError, match="A query is text"):
        ematix_flow.df.to_polars(shop.handle, 7)  # type: ignore[arg-type]
    with pytest.raises(LookupError):
        ematix_flow.df.to_pandas("nobody", "SELECT 1")


def test_wrong_arguments_are_refused_before_anything_is_written(shop: Place) -> None:
    frame = pl.DataFrame({"id": [1], "name": ["a"]})
    for wrong in ([{"id": 1}], {"id": [1]}, pd.Series([1]), pl.Series([1]), None, "SELECT 1"):
        with pytest.raises(TypeError, match="A DataFrame is needed"):
            shop.handle.write_df(wrong, "main.t", mode="append")
    for name in ("t", "a.b.c", ".t", "main.", "", None):
        with pytest.raises(ValueError, match="must be 'schema.table'"):
            shop.handle.write_df(frame, name, mode="append")  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="scd2"):
        shop.handle.write_df(frame, "main.t", mode="scd2", keys=("id",))
    for mode in ("merge", "scd1"):
        with pytest.raises(ValueError, match="needs keys="):
            shop.handle.write_df(frame, "main.t", mode=mode)
        with pytest.raises(ValueError, match="'nr' is not a column of main.t"):
            shop.handle.write_df(frame, "main.t", mode=mode, keys=("nr",))
    with pytest.raises(ValueError, match="Unknown mode 'upsert'"):
        shop.handle.write_df(frame, "main.t", mode="upsert")
    with pytest.raises(TypeError, match="keys= takes a tuple or list"):
        shop.handle.write_df(frame, "main.t", mode="merge", keys="id")
    for call in (shop.handle.write_spark_df, shop.handle.from_pyspark):
        with pytest.raises(TypeError, match="A Spark DataFrame is needed, not DataFrame"):
            call(frame, "main.t", mode="append")  # type: ignore[arg-type]
    for session in (None, "local", 7):
        with pytest.raises(TypeError, match="Spark session"):
            shop.handle.read_spark_df(session, "SELECT 1")  # type: ignore[arg-type]
    assert shop.handle.fetch_scalar_int("SELECT count(*) FROM sqlite_master") == 0, "nothing was made"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (SQLiteConnection, '"main.table"'),
        (DuckDBConnection, '"main.table"'),
        (DeltaLocalConnection, '"sales.table"'),
        (ObjectStoreLocalConnection, '"sales.table"'),
    ],
)
def test_a_table_without_a_schema_is_told_what_schemas_are_there(kind: Any, said: str, tmp_project: Path) -> None:
    more = {"format": "parquet"} if kind is ObjectStoreLocalConnection else {}
    place = kind(name="place", path=str(tmp_project / "place"), **more)
    with pytest.raises(ValueError, match="must be 'schema.table'") as caught:
        ematix_flow.df.write_df(place, pl.DataFrame({"id": [1]}), "orders", mode="append")
    assert isinstance(caught.value, FlowError) and said in str(caught.value.fix)


def test_importing_the_windows_starts_nothing(tmp_path: Path) -> None:
    code = """
        import sys
        import ematix_flow.df, ematix_flow.spark
        from ematix_flow.config.handles import ConnectionHandle
        for name in ("read_df", "write_df", "to_polars", "to_pandas", "read_spark_df", "write_spark_df", "to_pyspark",
                     "from_pyspark"):
            assert callable(getattr(ConnectionHandle, name))
        assert ematix_flow.spark.to_pyspark is ematix_flow.df.to_pyspark
        assert ematix_flow.spark.from_pyspark is ematix_flow.df.from_pyspark
        for owner, names in ((ematix_flow.df, ("read_df", "write_df")),
                             (ematix_flow.spark, ("read_spark_df", "write_spark_df"))):
            assert all(name in owner.__all__ and callable(getattr(owner, name)) for name in names)
        assert sorted({"pyspark", "pandas", "polars", "pyarrow", "duckdb"} & set(sys.modules)) == []
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_load_without_spark_works_where_pyspark_is_not_installed(tmp_path: Path, pg_url: str) -> None:
    code = f"""
        import sys
        sys.modules["pyspark"] = None
        import polars as pl
        from ematix_flow import connect
        for url, table in (("sqlite:///one.db", "main.t"), ("duckdb:///two.db", "main.t"), ({pg_url!r}, "public.t")):
            with connect("here", url=url) as db:
                db.write_df(pl.DataFrame({{"id": [1, 2]}}), table, mode="merge", keys=["id"])
                assert db.to_polars("SELECT id FROM t ORDER BY id")["id"].to_list() == [1, 2]
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr


# ── modes without a declared table ───────────────────────────────────────────────────────────────────────────────────


def test_append_truncate_and_merge_by_the_frames_own_columns(place: Place, no_spark: None) -> None:
    write, name = place.handle.write_df, place.table("t")
    write(pd.DataFrame({"id": [1, 2], "name": ["a", "b"]}), name, mode="append")
    write(pd.DataFrame({"id": [2], "name": ["c"]}), name, mode="append")
    assert place.rows("t", "id, name", "1, 2") == [(1, "a"), (2, "b"), (2, "c")]
    write(pd.DataFrame({"id": [1, 2, 3], "name": ["a", "b", "c"]}), name, mode="truncate")
    merged = write(pd.DataFrame({"name": ["a", "B", "d"], "id": [1, 2, 4]}), name, mode="merge", keys=["id"])
    assert (merged.rows_inserted, merged.rows_updated, merged.rows_unchanged) == (1, 1, 1)
    assert place.rows("t", "id, name") == [(1, "a"), (2, "B"), (3, "c"), (4, "d")]
    again = write(pl.DataFrame({"id": [4], "name": ["D"]}), name, mode="scd1", keys=("id",), update_columns=())
    assert (again.rows_inserted, again.rows_updated) == (0, 0)
    with pytest.raises(ValueError, match="more than once"):
        write(pl.DataFrame({"id": [5, 5], "name": ["x", "y"]}), name, mode="merge", keys=["id"])
    with pytest.raises(ValueError, match="Key 'id' .* is NULL"):
        write(pl.DataFrame({"id": [None, 6], "name": ["x", "y"]}), name, mode="merge", keys=["id"])
    assert len(place.rows("t")) == 4


def test_a_table_that_is_there_keeps_its_types_and_constraints(place: Place, no_spark: None) -> None:
    if place.kind in ("postgres", "duckdb"):
        place.handle.execute(f"CREATE SCHEMA {place.schema}")
    number = "INTEGER" if place.kind != "mysql" else "INT"
    place.handle.execute(
        f"CREATE TABLE {place.table('t')} (id {number} PRIMARY KEY, name VARCHAR(5) NOT NULL, note VARCHAR(20))"
    )
    before = place.handle.write_df(pl.DataFrame({"id": [1], "name": ["a"]}), place.table("t"), mode="append")
    assert before.rows_inserted == 1 and place.columns("t") == ["id", "name", "note"]
    for frame, said in (
        (pl.DataFrame({"id": [2], "name": [None]}), "NOT NULL"),
        (pl.DataFrame({"id": [2], "name": ["secretly long"]}), "does not fit"),  # DuckDB has no lengths
        (pl.DataFrame({"id": [2.5], "name": ["b"]}), "'id' does not fit"),
        (pl.DataFrame({"id": [1], "name": ["b"]}), "same|exist"),
        (pl.DataFrame({"id": [2], "nam": ["b"]}), "has no column 'nam', which the frame has"),
        (pl.DataFrame({"id": [2], "note": ["b"]}), "name.* NOT NULL"),
    ):
        if "long" in str(frame) and place.kind == "duckdb":
            continue
        with pytest.raises(ValueError, match=said) as caught:
            place.handle.write_df(frame, place.table("t"), mode="append")
        assert "secretly" not in str(caught.value)
    assert place.rows("t", "id, name, note") == [(1, "a", None)]
    if place.kind != "sqlite":  # there a whole number has 64 bits whatever it is called
        with pytest.raises(ValueError, match="'id' does not fit"):
            place.handle.write_df(pl.DataFrame({"id": [2**40], "name": ["b"]}), place.table("t"), mode="append")


def test_floats_become_decimals_just_as_in_a_pipeline(shop: Place) -> None:
    shop.handle.write_df(pa.table({"m": pa.array([Decimal("1.00")], pa.decimal128(12, 2))}), "main.t", mode="append")
    shop.handle.write_df(pd.DataFrame({"m": [2.345, float("nan"), 0.1]}), "main.t", mode="append")
    found = shop.handle.to_polars("SELECT m FROM t")["m"].to_list()
    assert found == [Decimal("1.00"), Decimal("2.35"), None, Decimal("0.10")]


# ── modes with a declared table ──────────────────────────────────────────────────────────────────────────────────────


def declared(schema: str) -> Any:
    @ematix.table(schema=schema)
    class Customers:
        id: Annotated[BigInt, pk()]
        name: Annotated[String[20], trim()]
        owes: Numeric[12, 2] | None
        changed_at: TimestampTZ

    return Customers


def test_every_mode_with_a_declared_table(place: Place) -> None:
    table, name = declared(place.schema), place.table("customers")
    frame = pd.DataFrame(
        {
            "changed_at": pd.to_datetime(["2026-01-01", "2026-01-02"]).tz_localize("UTC"),
            "name": ["  Ada ", "Bob"],
            "owes": [Decimal("1.5"), None],
            "id": [1, 2],
            "more": ["is left out", ""],
        }
    )
    first = place.handle.write_df(frame, name, mode="append", target=table)
    assert first.rows_inserted == 2 and place.columns("customers")[-2:] == ["_loaded_at", "_batch_id"]
    assert place.rows("customers", "id, name") == [(1, "Ada"), (2, "Bob")], "markers are applied"
    assert {str(row[0]) for row in place.rows("customers", "_batch_id")} == {first.run_id}
    changed = frame.assign(name=["Ada", "Rob"])
    merged = place.handle.write_df(changed, name, mode="merge", target=table)
    assert (merged.rows_inserted, merged.rows_updated, merged.rows_unchanged) == (0, 1, 1)
    assert place.handle.write_df(changed, name, mode="truncate", target=table).rows_inserted == 2


def test_a_history_from_frames(place: Place, no_spark: None) -> None:
    @ematix.table(schema=place.schema)
    class Versions:
        id: Annotated[BigInt, pk()]
        name: String[20]
        owes: Numeric[12, 2] | None
        changed_at: TimestampTZ

    table, name = Versions, place.table("versions")
    day = datetime(2026, 1, 1, tzinfo=timezone.utc)
    frame = pl.DataFrame(
        {"id": [1, 1], "name": ["Ada", "Ada L."], "owes": [None, None], "changed_at": [day, day + timedelta(days=1)]}
    )
    options: dict[str, Any] = {"mode": "scd2", "target": table, "event_timestamp_column": "changed_at"}
    result = place.handle.write_df(frame, name, **options)
    assert result.rows_inserted == 2
    assert [bool(row[0]) for row in place.rows("versions", "is_current", "valid_from")] == [False, True]
    assert place.handle.write_df(frame, name, **options).rows_inserted == 0


def test_a_declared_table_says_what_the_frame_lacks(shop: Place) -> None:
    table = declared("main")
    frame = pd.DataFrame({"id": [1], "nmae": ["a"], "changed_at": [INSTANT]})
    with pytest.raises(ValueError, match="The frame lacks 'name', 'owes', which main.customers declares") as caught:
        shop.handle.write_df(frame, "main.customers", mode="append", target=table)
    assert isinstance(caught.value, FlowError) and caught.value.fix == "did you mean 'nmae'?"
    with pytest.raises(ValueError, match="The table is 'main.others', and target= declares main.customers"):
        shop.handle.write_df(frame, "main.others", mode="append", target=table)
    with pytest.raises(TypeError, match="is not a table"):
        shop.handle.write_df(frame, "main.customers", mode="append", target="customers")


# ── it is a load like any other ──────────────────────────────────────────────────────────────────────────────────────


def test_a_load_is_in_the_books_and_a_named_run_happens_once(place: Place) -> None:
    history = "ematix_flow_run_history" if place.kind == "sqlite" else "ematix_flow.run_history"
    frame = pl.DataFrame({"id": [1]})
    first = place.handle.write_df(frame, place.table("t"), mode="append", run_id="day-1")
    again = place.handle.write_df(frame, place.table("t"), mode="append", run_id="day-1")
    assert first.rows_inserted == 1 and again.rows_inserted == 0 and again.replayed is True
    assert place.handle.write_df(frame, place.table("t"), mode="append").rows_inserted == 1
    assert len(place.rows("t")) == 2
    with pytest.raises(ValueError):
        place.handle.write_df(pl.DataFrame({"id": [None, 3]}), place.table("t"), mode="merge", keys=["id"])
    found = place.handle.query(
        f"SELECT pipeline_name, mode, status, rows_inserted FROM {history} WHERE run_id IN "
        f"('{first.run_id}') OR status = 'failed' ORDER BY status"
    )["rows"]
    assert [tuple(row)[:3] for row in found] == [
        (f"write_df:{place.table('t')}", "merge", "failed"),
        (f"write_df:{place.table('t')}", "append", "success"),
    ]


def test_a_frame_after_an_interrupted_one_is_a_load_of_its_own(tmp_project: Path) -> None:
    code = """
        import sys
        import polars as pl
        from ematix_flow import connect
        with connect("here", url="sqlite:///shop.db") as db:
            db.write_df(pl.DataFrame({"id": [int(sys.argv[1])]}), "main.t", mode="append")
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    import os

    died = subprocess.run(
        [*command, "1"], env={**os.environ, "EMATIX_FLOW_CRASH_AT": "settled"}, cwd=tmp_project, check=False
    )
    assert died.returncode not in (0, 1), "it was to die after it settled and before it was closed"
    subprocess.run([*command, "2"], cwd=tmp_project, check=True)
    with connect("here", url=f"sqlite:///{tmp_project}/shop.db") as db:
        assert sorted(db.to_polars("SELECT id FROM t")["id"].to_list()) == [1, 2]


class Steps:
    """An observer that remembers the route and the steps."""

    def __init__(self) -> None:
        self.routes: list[str] = []
        self.names: list[str] = []

    def planned(self, headline: str, route: str) -> None:
        self.routes.append(route)

    def step(self, name: str, status: StepStatus, detail: str = "", duration_ms: float | None = None) -> None:
        if status == "succeeded":
            self.names.append(name)

    def progress(self, stage: str, rows: int, total: int | None = None) -> None: ...

    def resumes_at(self, watermark: str | None) -> None: ...


@ematix.table(schema="main")
class Plain:
    id: Annotated[BigInt, pk()]
    name: Text | None


@ematix.table(schema="main")
class Cleaned:
    id: Annotated[BigInt, pk()]
    name: Annotated[Text | None, trim()]


def pipeline_of(table: Any, folder: Path, function: Any, **options: Any) -> PipelineSpec:
    place = SQLiteConnection(name="place", path=str(folder / "place.db"))
    options = {"target_connection": place, "mode": "append", "name": f"load_{uuid.uuid4().hex}", **options}
    pipeline = ematix.pipeline(target=table, **options)(function)
    spec: PipelineSpec = pipeline.spec
    return spec


def test_a_pipeline_that_gives_a_frame_says_how_it_went(tmp_project: Path) -> None:
    def function(conn: Any) -> Any:
        return pd.DataFrame({"name": [" a "], "id": [1]})

    seen = Steps()
    runner.run_pipeline(pipeline_of(Plain, tmp_project, function), observer=seen)
    assert seen.routes == ["memory · the rows are in this process"] and seen.names == ["plan", "stage", "settle"]
    seen = Steps()
    runner.run_pipeline(pipeline_of(Cleaned, tmp_project, function), observer=seen)
    assert seen.routes == ["spark · the source is a DataFrame"] and "spark" in seen.names
    seen = Steps()
    runner.run_pipeline(pipeline_of(Plain, tmp_project, function, mode="merge", engine="spark"), observer=seen)
    assert seen.routes == ["spark · engine='spark'"]


def test_a_function_may_read_a_frame_from_its_connection_and_give_it_back(tmp_project: Path) -> None:
    with connect("place", url=f"sqlite:///{tmp_project}/place.db") as db:
        db.write_df(pl.DataFrame({"id": [1, 2], "name": ["a", "b"]}), "main.raw", mode="append")

    def function(conn: Any) -> Any:
        return conn.to_polars("SELECT * FROM raw").filter(pl.col("id") > 1)

    runner.run_pipeline(pipeline_of(Plain, tmp_project, function))
    with connect("place", url=f"sqlite:///{tmp_project}/place.db") as db:
        assert db.to_polars("SELECT id, name FROM plain").rows() == [(2, "b")]


def test_what_only_looks_like_a_frame_is_no_source(tmp_project: Path) -> None:
    spec = pipeline_of(Plain, tmp_project, lambda conn: pd.Series([1]))
    with pytest.raises(TypeError, match="returned Series"):
        runner.run_pipeline(spec)


def test_frames_go_to_files_and_come_back(tmp_project: Path) -> None:
    lake = ObjectStoreLocalConnection(name="lake", path=str(tmp_project / "lake"), format="parquet")
    ematix_flow.df.write_df(lake, everything(), "shop.everything", mode="append")
    found = ematix_flow.df.to_polars(lake, "SELECT * FROM shop.everything ORDER BY id")
    assert found.columns == list(EVERYTHING) and found.to_dict(as_series=False) == EVERYTHING
    with pytest.raises(ValueError, match="gives more than one column called 'a'"):
        ematix_flow.df.to_polars(lake, "SELECT 1 AS a, 2 AS a FROM shop.everything")
    with pytest.raises(NotImplementedError, match="not possible"):
        ematix_flow.df.write_df(lake, everything(), "shop.everything", mode="merge", keys=["id"])
    with pytest.raises(FlowError, match="speaks SQL") as caught:
        connect(lake)
    named = [word for word in ("read_df", "write_df") if word in str(caught.value.fix)]
    assert named and all(callable(getattr(ematix_flow.df, name)) for name in named), "what the error names is there"


def test_frames_go_to_a_lake_table_and_come_back(tmp_project: Path) -> None:
    lake = DeltaLocalConnection(name="lake", path=str(tmp_project / "tables"))
    first = ematix_flow.df.write_df(lake, everything(), "shop.everything", mode="append", run_id="monday")
    assert first.rows_inserted == 3
    assert ematix_flow.df.write_df(lake, everything(), "shop.everything", mode="append", run_id="monday").replayed
    found = ematix_flow.df.read_df(lake, "SELECT * FROM shop.everything ORDER BY id")
    assert found.to_dict(as_series=False) == EVERYTHING
    changed = pd.DataFrame({"id": [1, 4], "name": ["Ida", "Zoe"]})
    merged = ematix_flow.df.write_df(lake, changed, "shop.everything", mode="merge", keys=["id"])
    assert (merged.rows_inserted, merged.rows_updated) == (1, 1)
    names = ematix_flow.df.read_df(lake, "SELECT id, name FROM shop.everything WHERE id IN (1, 4)", prefer="pandas")
    assert sorted(names.itertuples(index=False, name=None)) == [(1, "Ida"), (4, "Zoe")]
