"""Python functions in `transform_sql` of streams: the documented examples, and what becomes of a failing one."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ematix_flow import (
    Aggregation,
    DeltaLocalConnection,
    DuckDBConnection,
    MySQLConnection,
    ObjectStoreLocalConnection,
    PostgresConnection,
    SQLiteConnection,
    Target,
    Window,
    _core,
    ematix,
    run_streaming_pipeline,
    udaf,
    udf,
)
from ematix_flow.backends.mysql import MysqlBackend
from ematix_flow.errors import InvalidDeclaration, InvalidPlan, InvalidSource, UdfFailed
from ematix_flow.testing.registry import isolated_registry


@udf(args=("Float64", "Float64", "Float64", "Float64", "Float64"), returns="Float64")
def bs_call_delta(strike, spot, vol, rate, expiry):
    k = strike.to_numpy(zero_copy_only=False)
    s = spot.to_numpy(zero_copy_only=False)
    v = vol.to_numpy(zero_copy_only=False)
    r = rate.to_numpy(zero_copy_only=False)
    t = expiry.to_numpy(zero_copy_only=False)
    d1 = (np.log(s / k) + (r + 0.5 * v * v) * t) / (v * np.sqrt(t))
    cdf = 0.5 * (1.0 + np.vectorize(math.erf)(d1 / np.sqrt(2)))
    return pa.array(cdf, type=pa.float64())


@udaf(args=("Float64", "Float64"), state=("Float64", "Float64"), returns="Float64", name="vwap")
class Vwap:
    def __init__(self):
        self.num = 0.0
        self.den = 0.0

    def update_batch(self, prices, qtys):
        self.num += pc.sum(pc.multiply(prices, qtys)).as_py() or 0.0
        self.den += pc.sum(qtys).as_py() or 0.0

    def merge_batch(self, num_states, den_states):
        self.num += pc.sum(num_states).as_py() or 0.0
        self.den += pc.sum(den_states).as_py() or 0.0

    def evaluate(self):
        if self.den == 0:
            return pa.array([None], type=pa.float64())
        return pa.array([self.num / self.den], type=pa.float64())

    def state(self):
        return (pa.array([self.num], type=pa.float64()), pa.array([self.den], type=pa.float64()))


@udf(args=("Int64",), returns="Int64")
def halved(value: pa.Array) -> pa.Array:
    if pc.any(pc.equal(pc.bit_wise_and(value, 1), 1)).as_py():
        raise ValueError("odd")
    return pc.divide(value, 2)


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    folder = tmp_path / "lake" / "raw"
    folder.mkdir(parents=True)
    return folder


def consume(inbox: Path, target: Any, table: tuple[str, str], sql: str, **options: Any) -> dict[str, Any]:
    return run_streaming_pipeline(
        **{
            "name": f"udfs_{inbox.parent.parent.name}",
            "source": ObjectStoreLocalConnection(name="drop", path=str(inbox.parent), format="csv"),
            "source_query": inbox.name,
            "target": target,
            "target_table": table,
            "transform_sql": sql,
            "once": True,
            **options,
        }
    )


def test_the_documented_function_goes_into_a_jsonb_column(inbox: Path, pg_url: str) -> None:
    (inbox / "a.csv").write_text(
        "ts,strike,bid,ask,spot,vol,rate,expiry\n"
        "2026-03-01T06:00:10,4500,1.25,1.30,4500,0.2,0.01,0.5\n2026-03-01T06:00:40,4400,9,10,4500,0.2,0.01,0.5\n"
    )
    with psycopg.connect(pg_url, autocommit=True) as db:
        db.execute("CREATE SCHEMA marketdata")
        db.execute(
            "CREATE TABLE marketdata.option_chain_snapshots (minute TIMESTAMPTZ NOT NULL, strikes_json JSONB NOT NULL)"
        )
        sql = """
            SELECT
              date_trunc('minute', ts) AS minute,
              array_agg(named_struct(
                'strike', strike,
                'bid',    bid,
                'ask',    ask,
                'delta',  bs_call_delta(strike, spot, vol, rate, expiry)
              )) AS strikes_json
            FROM source
            GROUP BY 1
        """
        target = PostgresConnection(name="warehouse", url=pg_url)
        consume(inbox, target, ("marketdata", "option_chain_snapshots"), sql, udfs=[bs_call_delta])
        [(_, strikes)] = db.execute("SELECT * FROM marketdata.option_chain_snapshots").fetchall()
    found = {row["strike"]: row["delta"] for row in strikes}
    assert found[4500] == pytest.approx(0.5422, abs=1e-4)
    assert found[4400] > found[4500]


def test_the_documented_aggregate_runs_as_a_decorated_stream(inbox: Path, tmp_path: Path) -> None:
    (inbox / "a.csv").write_text(
        "ts,price,qty\n2026-03-01T06:00:10,10,2\n2026-03-01T06:00:50,13,1\n2026-03-01T06:01:00,1,0\n"
    )
    with isolated_registry():

        @ematix.streaming_pipeline(
            name="vwap-per-minute",
            source=ObjectStoreLocalConnection(name="drop", path=str(inbox.parent), format="csv"),
            source_query="raw",
            target=SQLiteConnection(name="store", path=str(tmp_path / "store.db")),
            target_table=("main", "vwap_per_minute"),
            transform_sql="""
              SELECT date_trunc('minute', ts) AS minute,
                     vwap(price, qty)          AS vwap
              FROM source GROUP BY 1
            """,
            aggregate_udfs=[Vwap],
        )
        def vwap_per_minute() -> None: ...

        assert vwap_per_minute.run(once=True)["total_rows"] == 2
    with sqlite3.connect(tmp_path / "store.db") as db:
        assert [value for (value,) in db.execute("SELECT vwap FROM vwap_per_minute ORDER BY minute")] == [11.0, None]


def test_a_failing_function_stops_the_stream_and_names_itself_and_the_batch(inbox: Path, tmp_path: Path) -> None:
    (inbox / "a.csv").write_text("id\n2\n3\n")
    target = SQLiteConnection(name="store", path=str(tmp_path / "store.db"))
    with pytest.raises(UdfFailed, match=r"Batch 0: UDF 'halved' raised ValueError"):
        consume(inbox, target, ("main", "halves"), "SELECT halved(id) AS half FROM source", udfs=[halved])
    with sqlite3.connect(tmp_path / "store.db") as db:
        assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'halves'").fetchone() == (0,)


def test_rows_that_a_function_fails_for_are_set_aside_and_the_others_reach_every_target(
    inbox: Path, tmp_path: Path
) -> None:
    (inbox / "a.csv").write_text("id\n" + "\n".join(str(n) for n in (2, 4, 7, 10, 40)) + "\n")
    store = SQLiteConnection(name="store", path=str(tmp_path / "store.db"))
    with sqlite3.connect(tmp_path / "store.db") as db:
        db.execute("CREATE TABLE narrow (half varchar(1))")
    targets = [Target(connection=store, table=("main", name)) for name in ("halves", "narrow")]
    run_streaming_pipeline(
        name=f"halves_{tmp_path.name}",
        source=ObjectStoreLocalConnection(name="drop", path=str(inbox.parent), format="csv"),
        source_query=inbox.name,
        targets=targets,
        transform_sql="SELECT cast(halved(id) AS text) AS half FROM source",
        udfs=[halved],
        transform_on_error="drop",
        once=True,
    )
    with sqlite3.connect(tmp_path / "store.db") as db:
        for table in ("halves", "narrow"):
            assert sorted(int(value) for (value,) in db.execute(f"SELECT half FROM {table}")) == [1, 2, 5]


def test_a_stream_of_toml_is_handed_its_functions(inbox: Path, tmp_path: Path) -> None:
    (inbox / "a.csv").write_text("id\n2\n4\n")
    document = f"""
        pipeline_name = "from_toml"
        source_query = "raw"
        [source]
        kind = "object_store_local"
        path = "{inbox.parent}"
        format = "csv"
        [target]
        kind = "sqlite"
        path = "{tmp_path}/store.db"
        [target.table]
        schema = "main"
        name = "halves"
        [transform]
        sql = "SELECT halved(id) AS half FROM source"
    """
    assert _core.run_pipeline_from_toml_str(document, udfs=[halved], once=True)["total_rows"] == 2
    with sqlite3.connect(tmp_path / "store.db") as db:
        assert db.execute("SELECT half FROM halves ORDER BY 1").fetchall() == [(1,), (2,)]


def test_a_function_stands_in_front_of_a_window_and_an_aggregate_may_not(inbox: Path, tmp_path: Path) -> None:
    times = {2: "06:00:10", 4: "06:00:20", 7: "06:00:30", 6: "06:05:00"}  # of 7 there is no half
    (inbox / "a.csv").write_text("at,id\n" + "".join(f"2026-03-01T{at}Z,{n}\n" for n, at in times.items()))
    target = SQLiteConnection(name="store", path=str(tmp_path / "store.db"))
    window = Window(
        "tumbling", [Aggregation("sum", "total", "half")], duration_ms=60_000, event_time_column="at", group_by=()
    )
    sql = "SELECT at, halved(id) AS half FROM source"
    consume(inbox, target, ("main", "per_minute"), sql, udfs=[halved], window=window, transform_on_error="drop")
    with sqlite3.connect(tmp_path / "store.db") as db:
        assert db.execute("SELECT total FROM per_minute ORDER BY window_start").fetchall() == [(3,)]
    with pytest.raises(InvalidSource, match=r"the aggregate vwap\(\) would depend on which rows share a batch"):
        sql = "SELECT vwap(id, 1) AS half FROM source"
        consume(inbox, target, ("main", "per_minute"), sql, aggregate_udfs=[Vwap], window=window)


def test_calls_that_cannot_work_and_names_that_clash_are_refused_before_anything_connects(tmp_path: Path) -> None:
    nowhere = PostgresConnection(name="pg", url="postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(InvalidPlan, match=r"halved\(\) takes 1 argument, not 2"):
        consume(tmp_path / "a" / "b", nowhere, ("public", "t"), "SELECT halved(id, 1) FROM source", udfs=[halved])
    other = udf(args=("Int64",), returns="Int64", name="Halved")(lambda value: value)
    with pytest.raises(InvalidDeclaration, match="Two UDFs are named 'Halved'"):
        consume(tmp_path / "a" / "b", nowhere, ("public", "t"), "SELECT 1 FROM source", udfs=[halved, other])


def gathered(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, str, Callable[[], Any]]:
    """A target, its schema, and how its one list is read back."""
    sql = "SELECT items FROM gathered"
    if kind == "sqlite":
        path = str(tmp_path / "store.db")
        return SQLiteConnection(name="s", path=path), "main", lambda: sqlite3.connect(path).execute(sql).fetchone()[0]
    if kind == "mysql":
        my = MySQLConnection(name="my", url=request.getfixturevalue("mysql_url"))

        def from_mysql() -> Any:
            with MysqlBackend(my).session() as db:
                return db.execute(sql).fetchone()[0]

        return my, my.url.rpartition("/")[2], from_mysql
    if kind == "delta":
        from deltalake import DeltaTable

        root = str(tmp_path / "out")
        table = f"{root}/main/gathered"
        return (
            DeltaLocalConnection(name="lake", path=root),
            "main",
            lambda: DeltaTable(table).to_pyarrow_table().to_pylist()[0]["items"],
        )
    import duckdb

    path = str(tmp_path / "store.duckdb")

    def from_duckdb() -> Any:
        with duckdb.connect(path) as db:
            return db.execute(sql).fetchone()[0]

    return DuckDBConnection(name="d", path=path), "main", from_duckdb


@pytest.mark.parametrize("kind", ["sqlite", "mysql", "duckdb", "delta"])
def test_a_list_of_structs_is_gathered_on_every_kind_of_target(
    kind: str, inbox: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (inbox / "a.csv").write_text("k,id,name,at\na,1,x,2026-03-01T06:00:00\na,2,,\n")
    target, schema, read = gathered(kind, request, tmp_path)
    sql = "SELECT k, array_agg(named_struct('id', id, 'name', name, 'at', at)) AS items FROM source GROUP BY 1"
    consume(inbox, target, (schema, "gathered"), sql)
    found = read()
    items = json.loads(found) if isinstance(found, str) else found
    items = sorted(items, key=lambda item: item["id"])
    assert [(item["id"], item["name"]) for item in items] == [(1, "x"), (2, None)]
    assert str(items[0]["at"])[:10] == "2026-03-01" and items[1]["at"] is None
