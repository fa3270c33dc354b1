"""One source, several targets: read once, loaded one by one.

Reads are counted by the source: every row of its view draws a ticket from a sequence, in a session of its own, since
sources are read in transactions that may not write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest

from ematix_flow import (
    Annotated,
    BigInt,
    Bytes,
    Double,
    Integer,
    Numeric,
    ObjectStoreLocalConnection,
    PostgresConnection,
    SQLiteConnection,
    Target,
    Text,
    TimestampTZ,
    connect,
    ematix,
    pk,
)
from ematix_flow.contracts.runtime import SilentObserver, StepStatus
from ematix_flow.declare.pipeline import Pipeline
from ematix_flow.errors import DuplicateKeys, FlowError, MissingSourceColumn, StepFailed
from ematix_flow.normalize import derive, lower, round as rounded, sql, trim, upper
from ematix_flow.run.runner import run_pipeline
from ematix_flow.testing.registry import isolated_registry
from ematix_flow.testing.runlog import MemoryRunLog, use_run_log
from ematix_flow.transforms import deduplicate_by, filter_where, limit

ROWS = 5


@ematix.table(schema="main")
class Plain:
    id: BigInt
    name: Text | None
    ticket: BigInt


@ematix.table(schema="main")
class Cleaned:
    id: Annotated[BigInt, pk()]
    name: Annotated[Text, trim(), lower()]
    ticket: BigInt


@ematix.table(schema="analytics")
class Archive:
    id: BigInt
    name: Text
    ticket: BigInt


@dataclass
class Places:
    """The source's database, and three places that rows go to."""

    source: PostgresConnection
    shop: SQLiteConnection
    lake: ObjectStoreLocalConnection
    url: str
    folder: Path
    calls: list[str] = field(default_factory=list)

    def execute(self, *statements: str) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as db:
            for statement in statements:
                found = db.execute(statement)
            return found.fetchall() if found.description else []

    def tickets_drawn(self) -> int:
        """How many rows the view has given away since it was made."""
        value, called = self.execute("SELECT last_value, is_called FROM tickets")[0]
        return int(value) if called else 0

    def sqlite(self, query: str) -> list[list[Any]]:
        with connect(url=f"sqlite:///{self.shop.path}") as db:
            return db.query(query)["rows"]

    def parquet(self, *columns: str) -> list[tuple[Any, ...]]:
        table = pq.read_table(self.folder / "lake" / "analytics" / "archive", columns=list(columns))
        return sorted(zip(*(table.column(name).to_pylist() for name in columns), strict=True))

    def fan_out(self, *targets: Target, function: Callable[..., Any] | None = None, **options: Any) -> Pipeline:
        """A pipeline `fan` from the counting view."""

        def everything(conn: Any) -> str:
            self.calls.append("called")
            return "SELECT id, name, ticket FROM people"

        options.setdefault("source_connection", self.source)
        declared = ematix.pipeline(name="fan", targets=list(targets), **options)(function or everything)
        assert isinstance(declared, Pipeline)
        return declared


@pytest.fixture
def places(tmp_project: Path, pg_url: str) -> Iterator[Places]:
    found = Places(
        PostgresConnection(name="raw", url=pg_url),
        SQLiteConnection(name="shop", path=str(tmp_project / "shop.db")),
        ObjectStoreLocalConnection(name="lake", path=str(tmp_project / "lake"), format="parquet"),
        pg_url,
        tmp_project,
    )
    found.execute(
        "CREATE SEQUENCE tickets",
        "CREATE EXTENSION dblink",
        "CREATE FUNCTION draw() RETURNS bigint LANGUAGE sql VOLATILE AS $body$ "
        f"SELECT n FROM dblink('{pg_url}', 'SELECT nextval(''tickets'')') AS t(n bigint) $body$",
        "CREATE TABLE raw_people (id bigint, name text)",
        f"INSERT INTO raw_people SELECT n, '  Name ' || n FROM generate_series(1, {ROWS}) AS n",
        "CREATE VIEW people AS SELECT id, name, draw() AS ticket FROM raw_people",
    )
    with isolated_registry():
        yield found


class Watching(SilentObserver):
    """Remembers the steps; may do something when one begins."""

    def __init__(self, at: str | None = None, act: Callable[[], None] | None = None) -> None:
        self.steps: list[tuple[str, str]] = []
        self._at, self._act = at, act

    def step(self, name: str, status: StepStatus, detail: str = "", duration_ms: float | None = None) -> None:
        self.steps.append((name, status))
        if self._act is not None and name == self._at and status == "running":
            self._act()

    def count(self, name: str) -> int:
        return self.steps.count((name, "succeeded"))


def nothing_is_kept() -> bool:
    """Whether Spark holds no persisted rows."""
    from pyspark.sql import SparkSession

    session: Any = SparkSession.getActiveSession()
    return bool(session._jsparkSession.sharedState().cacheManager().isEmpty())


def test_the_function_is_called_once_and_the_source_is_read_once_for_every_target(places: Places) -> None:
    watching = Watching()
    pipeline = places.fan_out(
        ematix.target(Plain, mode="append", target_connection=places.shop),
        ematix.target(Cleaned, mode="merge", target_connection=places.shop),
        Target(table=Archive, connection=places.lake),
        mode="append",
    )
    result = run_pipeline(pipeline.spec, observer=watching)
    assert places.calls == ["called"]
    assert places.tickets_drawn() == ROWS
    assert list(result) == ["main.plain", "main.cleaned", "analytics.archive"]
    assert {part.path for part in result.values()} == {"cross_db"}
    assert [part.rows_inserted for part in result.values()] == [ROWS] * 3
    assert len({part.run_id for part in result.values()}) == 3
    assert watching.count("read") == 1
    expected = [[n, f"  Name {n}", n] for n in range(1, ROWS + 1)]
    assert places.sqlite("SELECT id, name, ticket FROM plain ORDER BY id") == expected
    assert places.sqlite("SELECT id, name, ticket FROM cleaned ORDER BY id") == [
        [n, name.strip().lower(), n] for n, name, _ in expected
    ]
    assert places.parquet("id", "name", "ticket") == [tuple(row) for row in expected]
    assert nothing_is_kept()


def test_a_target_in_the_sources_own_database_is_pushed_down_and_the_others_share_a_reading(places: Places) -> None:
    watching = Watching()
    pipeline = places.fan_out(
        ematix.target(Plain, mode="append", target_connection=places.shop),
        ematix.target(Archive, mode="append", target_connection=places.source),
        ematix.target(Cleaned, mode="merge", target_connection=places.shop),
    )
    result = run_pipeline(pipeline.spec, observer=watching)
    assert [part.path for part in result.values()] == ["cross_db", "same_db", "cross_db"]
    assert places.tickets_drawn() == 2 * ROWS, "once by the statement in the database, once for the other two"
    assert watching.count("read") == 1


def test_targets_that_can_all_be_pushed_down_start_no_spark(places: Places) -> None:
    watching = Watching()

    @ematix.table(schema="public")
    class Copy:
        id: BigInt
        name: Text

    pipeline = places.fan_out(
        ematix.target(Archive, mode="append", target_connection=places.source),
        ematix.target(Copy, mode="append", target_connection=places.source),
    )
    result = run_pipeline(pipeline.spec, observer=watching)
    assert {part.path for part in result.values()} == {"same_db"}
    assert watching.count("spark") == watching.count("read") == 0


def test_one_target_through_spark_pays_nothing_for_sharing(places: Places) -> None:
    watching = Watching()
    run_pipeline(
        places.fan_out(
            ematix.target(Archive, mode="append", target_connection=places.source),
            ematix.target(Plain, mode="append", target_connection=places.shop),
        ).spec,
        observer=watching,
    )
    assert (watching.count("spark"), watching.count("read")) == (1, 0)


# ── every target in its own columns ──────────────────────────────────────────────────────────────────────────────────


@ematix.table(schema="main")
class Exact:
    id: BigInt
    amount: Numeric[38, 20]
    ticket: BigInt


@ematix.table(schema="main")
class Rounded:
    key: Annotated[BigInt, pk()]
    amount: Annotated[Numeric[10, 1], rounded(1)]
    ticket: BigInt


@ematix.table(schema="main")
class Worked:
    id: BigInt
    amount: Annotated[Double, rounded(0)]
    shown: Annotated[Text, derive("'#' || id"), lower()]
    tag: Annotated[Text, sql("left(col, 2)"), upper()]
    ticket: BigInt


@ematix.table(schema="main")
class Shown:
    id: BigInt
    shown: Annotated[Text, derive("id || '!'")]
    ticket: BigInt


def test_columns_names_types_and_markers_are_each_targets_own(places: Places) -> None:
    places.execute(
        "CREATE TABLE raw_amounts (id int, amount numeric, tag text)",
        "INSERT INTO raw_amounts VALUES (1, 1.25, 'abc'), (2, 0.12345678901234567891, 'xyz')",
        "CREATE VIEW amounts AS SELECT *, draw() AS ticket FROM raw_amounts",
    )

    def amounts(conn: Any) -> str:
        return "SELECT * FROM amounts"

    targets = [
        ematix.target(Exact, mode="append", target_connection=places.shop),
        ematix.target(Rounded, mode="merge", target_connection=places.shop, column_map={"key": "id"}),
        ematix.target(Worked, mode="append", target_connection=places.shop),
        ematix.target(Shown, mode="append", target_connection=places.shop),
    ]
    places.fan_out(*targets, function=amounts).sync()
    assert places.tickets_drawn() == 2
    together = {t: places.sqlite(f"SELECT * FROM {t} ORDER BY 1") for t in ("exact", "rounded", "worked", "shown")}
    assert [row[:2] for row in together["exact"]] == [
        [1, "1.25000000000000000000"],
        [2, "0.12345678901234567891"],
    ]
    assert [row[:2] for row in together["rounded"]] == [[1, "1.3"], [2, "0.1"]]
    assert [row[2:4] for row in together["worked"]] == [["#1", "AB"], ["#2", "XY"]]
    assert [row[1] for row in together["shown"]] == ["1!", "2!"]
    with connect(url=f"sqlite:///{places.shop.path}") as db:
        for name in together:
            db.execute(f"DELETE FROM {name}")
    for target in targets:
        places.fan_out(target, function=amounts).sync()
    for name, rows in together.items():
        alone = places.sqlite(f"SELECT * FROM {name} ORDER BY 1")
        assert [row[:-3] for row in alone] == [row[:-3] for row in rows], "stamps and the ticket aside"


@pytest.mark.parametrize(
    ("steps", "shared", "drawn"),
    [
        ((filter_where("id > 2"),), 1, 3),
        ((deduplicate_by("id"), limit(3)), 1, ROWS),
        ((deduplicate_by("id"), filter_where("id > 2")), 0, 2 * 3),
    ],
    ids=["a condition", "steps on spark", "a condition after a step that looks at all columns"],
)
def test_steps_before_the_load_are_applied_for_every_target(
    places: Places, steps: Any, shared: int, drawn: int
) -> None:
    @ematix.table(schema="main")
    class Few:
        id: BigInt
        ticket: BigInt

    watching = Watching()
    pipeline = places.fan_out(
        ematix.target(Plain, mode="append", target_connection=places.shop),
        ematix.target(Few, mode="append", target_connection=places.shop),
        transforms_pre=steps,
    )
    run_pipeline(pipeline.spec, observer=watching)
    plain, few = places.sqlite("SELECT id FROM plain ORDER BY 1"), places.sqlite("SELECT id FROM few ORDER BY 1")
    assert plain == few and len(plain) == 3
    assert (watching.count("read"), places.tickets_drawn()) == (shared, drawn)


def test_a_column_that_one_target_declares_and_the_source_lacks_is_that_targets_error(places: Places) -> None:
    @ematix.table(schema="main")
    class Wider:
        id: BigInt
        city: Text

    pipeline = places.fan_out(
        ematix.target(Plain, mode="append", target_connection=places.shop),
        ematix.target(Wider, mode="append", target_connection=places.shop),
        source_table="public.people",
        function=lambda: None,
    )
    with pytest.raises(MissingSourceColumn, match=r"'city', which main\.wider declares"):
        pipeline.sync()
    assert len(places.sqlite("SELECT id FROM plain")) == ROWS


def test_a_file_that_two_targets_read_in_different_ways_is_right_for_both(places: Places) -> None:
    folder = places.folder / "drop" / "raw" / "things"
    folder.mkdir(parents=True)
    (folder / "a.jsonl").write_text('{"id": 1, "amount": 1.10, "blob": "aGk="}\n')
    drop = ObjectStoreLocalConnection(name="drop", path=str(places.folder / "drop"), format="json_lines")

    @ematix.table(schema="main")
    class Kept:
        id: BigInt
        amount: Numeric[10, 2]
        blob: Bytes

    @ematix.table(schema="main")
    class Loose:
        id: Integer
        amount: Double
        blob: Text

    places.fan_out(
        ematix.target(Kept, mode="append", target_connection=places.shop),
        ematix.target(Loose, mode="append", target_connection=places.shop),
        source_connection=drop,
        source_table="raw.things",
        function=lambda: None,
    ).sync()
    assert [row[:3] for row in places.sqlite("SELECT id, amount, hex(blob) FROM kept")] == [[1, "1.10", "6869"]]
    assert [row[:3] for row in places.sqlite("SELECT * FROM loose")] == [[1, 1.1, "aGk="]]


# ── frames ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def three_rows(kind: str, log: Path) -> Any:
    """A frame of some kind; computing the Spark ones leaves a line per row in the log."""
    import pyarrow as pa

    table = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"], "ticket": [1, 2, 3]})
    if kind == "arrow":
        return table
    if kind == "pandas":
        return table.to_pandas()
    from ematix_flow.contracts.session import SessionNeeds, SparkSettings
    from ematix_flow.spark.session import open_session

    path = str(log)

    def noted(batches: Any) -> Any:
        for batch in batches:
            with open(path, "a") as out:
                out.write("row\n" * batch.num_rows)
            yield batch

    spark = open_session(SessionNeeds(), SparkSettings())
    frame = spark.createDataFrame(table).repartition(2).mapInArrow(noted, "id bigint, name string, ticket bigint")
    return frame.persist() if kind == "persisted" else frame


@pytest.mark.parametrize("kind", ["arrow", "pandas", "spark", "persisted"])
def test_a_frame_that_the_function_gives_is_worked_out_once(places: Places, kind: str) -> None:
    log = places.folder / "computed.log"
    log.touch()
    frame = three_rows(kind, log)
    places.fan_out(
        ematix.target(Plain, mode="append", target_connection=places.shop),
        ematix.target(Cleaned, mode="merge", target_connection=places.shop),
        function=lambda conn: frame,
    ).sync()
    assert len(places.sqlite("SELECT id FROM plain")) == len(places.sqlite("SELECT id FROM cleaned")) == 3
    assert len(log.read_text().splitlines()) == (3 if kind in ("spark", "persisted") else 0)
    if kind == "persisted":
        assert frame.storageLevel.useMemory, "what the user keeps is left alone"
        frame.unpersist()
    assert nothing_is_kept()


# ── failures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@ematix.table(schema="main")
class Unique:
    name: Annotated[Text, trim(), sql("left(col, 4)"), pk()]


def test_a_failing_target_leaves_the_rows_for_the_next_one(places: Places) -> None:
    pipeline = places.fan_out(
        ematix.target(Plain, mode="append", target_connection=places.shop),
        ematix.target(Unique, mode="merge", target_connection=places.shop),
        Target(table=Archive, connection=places.lake),
        mode="append",
        continue_on_target_failure=True,
    )
    result = pipeline.sync()
    assert list(result["errors"]) == ["main.unique"] and "main.unique" in result["errors"]["main.unique"]
    assert list(result["results"]) == ["main.plain", "analytics.archive"]
    assert len(places.sqlite("SELECT id FROM plain")) == len(places.parquet("id")) == ROWS
    assert places.tickets_drawn() == ROWS
    assert nothing_is_kept()


def test_the_first_target_may_be_the_one_that_fails(places: Places) -> None:
    result = places.fan_out(
        ematix.target(Unique, mode="merge", target_connection=places.shop),
        ematix.target(Plain, mode="append", target_connection=places.shop),
        continue_on_target_failure=True,
    ).sync()
    assert list(result["errors"]) == ["main.unique"]
    assert len(places.sqlite("SELECT id FROM plain")) == places.tickets_drawn() == ROWS


def test_without_the_flag_later_targets_are_not_tried_and_nothing_stays_kept(places: Places) -> None:
    pipeline = places.fan_out(
        ematix.target(Plain, mode="append", target_connection=places.shop),
        ematix.target(Unique, mode="merge", target_connection=places.shop),
        Target(table=Archive, connection=places.lake),
        mode="append",
    )
    with pytest.raises(DuplicateKeys, match=r"main\.unique"):
        pipeline.sync()
    assert len(places.sqlite("SELECT id FROM plain")) == ROWS
    assert not (places.folder / "lake").exists()
    assert nothing_is_kept()


def test_a_target_that_cannot_be_reached_is_named_and_the_others_are_loaded(places: Places) -> None:
    gone = PostgresConnection(name="gone", url="postgresql://nobody:secret@127.0.0.1:1/none")

    result = places.fan_out(
        ematix.target(Archive, mode="append", target_connection=gone),
        ematix.target(Plain, mode="append", target_connection=places.shop),
        ematix.target(Cleaned, mode="merge", target_connection=places.shop),
        continue_on_target_failure=True,
    ).sync()
    assert list(result["results"]) == ["main.plain", "main.cleaned"]
    assert result["errors"]["analytics.archive"].startswith("analytics.archive: ")
    assert "secret" not in str(result)
    assert places.tickets_drawn() == ROWS


def test_a_function_that_raises_fails_the_run_once_and_no_target_is_touched(places: Places) -> None:
    def broken(conn: Any) -> str:
        places.calls.append("called")
        raise ValueError("no")

    pipeline = places.fan_out(
        ematix.target(Plain, mode="append", target_connection=places.shop),
        ematix.target(Cleaned, mode="merge", target_connection=places.shop),
        function=broken,
        continue_on_target_failure=True,
    )
    with pytest.raises(StepFailed, match="ValueError: no"):
        pipeline.sync()
    assert places.calls == ["called"] and not Path(places.shop.path).exists()


def test_a_mapping_that_the_function_returns_is_the_result(places: Places) -> None:
    pipeline = places.fan_out(
        ematix.target(Plain, mode="append", target_connection=places.shop),
        ematix.target(Cleaned, mode="merge", target_connection=places.shop),
        function=lambda conn: {"done": 3},
    )
    assert pipeline.sync() == {"done": 3}


def test_without_a_source_connection_the_source_is_the_first_targets(places: Places) -> None:
    result = places.fan_out(
        ematix.target(Archive, mode="append", target_connection=places.source),
        ematix.target(Plain, mode="append", target_connection=places.shop),
        source_connection=None,
    ).sync()
    assert [part.path for part in result.values()] == ["same_db", "cross_db"]
    assert len(places.sqlite("SELECT id FROM plain")) == ROWS


# ── marks and runs ───────────────────────────────────────────────────────────────────────────────────────────────────


@ematix.table(schema="main")
class Events:
    n: BigInt
    at: TimestampTZ


@ematix.table(schema="main")
class Days:
    n: BigInt
    at: TimestampTZ
    day: Annotated[Text, derive("'day ' || n")]


@pytest.mark.parametrize("given", ["SELECT n, at FROM events", "SELECT n, at FROM events WHERE at > $watermark"])
def test_targets_at_different_marks_get_each_what_is_new_to_them(places: Places, given: str) -> None:
    places.execute(
        "CREATE TABLE raw_events (n bigint, at timestamptz)",
        "INSERT INTO raw_events SELECT n, timestamptz '2026-03-01Z' + n * interval '1d' FROM generate_series(1, 3) n",
        "CREATE VIEW events AS SELECT * FROM raw_events WHERE draw() > 0",
    )

    def events(conn: Any) -> str:
        return given

    both = [
        ematix.target(Events, mode="append", target_connection=places.shop),
        ematix.target(Days, mode="append", target_connection=places.shop),
    ]
    options: dict[str, Any] = {"function": events, "incremental_column": "at"}
    first = places.fan_out(both[0], **options).sync()
    assert first["main.events"].rows_inserted == 3
    places.execute("INSERT INTO raw_events VALUES (4, '2026-03-20Z')")
    before = places.tickets_drawn()
    second = places.fan_out(*both, **options).sync()
    assert places.tickets_drawn() - before == 4, "one reading, of everything, for the one that has nothing yet"
    assert (second["main.events"].rows_inserted, second["main.days"].rows_inserted) == (1, 4)
    places.execute("INSERT INTO raw_events VALUES (5, '2026-03-21Z')")
    assert places.fan_out(both[1], **options).sync()["main.days"].rows_inserted == 1
    third = places.fan_out(*both, **options).sync()
    assert (third["main.events"].rows_inserted, third["main.days"].rows_inserted) == (1, 0)
    assert places.sqlite("SELECT count(*), count(DISTINCT n) FROM events") == [[5, 5]]
    assert places.sqlite("SELECT count(*), count(DISTINCT n) FROM days") == [[5, 5]]
    assert dict(places.sqlite("SELECT pipeline_name, last_value FROM ematix_flow_watermarks")) == {
        "fan::main.events": "2026-03-21T00:00:00.000000Z",
        "fan::main.days": "2026-03-21T00:00:00.000000Z",
    }


def test_a_named_run_is_applied_once_to_each_target(places: Places) -> None:
    plain = ematix.target(Plain, mode="append", target_connection=places.shop)
    places.fan_out(plain).sync(run_id="monday")
    result = places.fan_out(plain, Target(table=Archive, connection=places.lake, mode="append")).sync(run_id="monday")
    assert (result["main.plain"].replayed, result["analytics.archive"].rows_inserted) == (True, ROWS)
    assert len(places.sqlite("SELECT id FROM plain")) == len(places.parquet("id")) == ROWS


def test_an_interrupted_run_is_taken_up_where_it_stopped(places: Places) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    pipeline = places.fan_out(
        ematix.target(Plain, mode="append", target_connection=places.shop),
        Target(table=Archive, connection=places.lake),
        mode="append",
    )
    with pytest.raises(KeyboardInterrupt):
        run_pipeline(pipeline.spec, observer=Watching("write", interrupt))
    assert nothing_is_kept()
    assert len(places.sqlite("SELECT id FROM plain")) == ROWS and not list(places.folder.glob("lake/**/*.parquet"))
    result = pipeline.sync()
    assert result["main.plain"].replayed and result["analytics.archive"].rows_inserted == ROWS
    assert len(places.sqlite("SELECT id FROM plain")) == len(places.parquet("id")) == ROWS
    again = pipeline.sync()
    assert again["main.plain"].rows_inserted == ROWS, "the run after it is a new one"


def test_every_target_has_its_own_history_and_stages(places: Places) -> None:
    log = MemoryRunLog()
    with use_run_log(log):
        places.fan_out(
            ematix.target(Plain, mode="append", target_connection=places.shop),
            ematix.target(Cleaned, mode="merge", target_connection=places.shop),
            transforms_post=["DELETE FROM plain WHERE id = 1"],
        ).sync()
        (record,), _ = log.list_runs()
    steps = record.extras["steps"]
    loads = ["load:main.plain", "load:main.cleaned"]
    assert [(step["name"], step["depends_on"]) for step in steps] == [
        ("source", []),
        *((load, ["source"]) for load in loads),
        ("post[0]", loads),
    ]
    assert [[stage["name"] for stage in step.get("stages", ())] for step in steps] == [
        [],
        ["plan", "spark", "read", "stage", "settle"],
        ["plan", "spark", "stage", "settle"],
        [],
    ]
    done = [part for step in steps for part in (step, *step.get("stages", ()))]
    assert {part["status"] for part in done} == {"succeeded"}
    assert record.extras["rows_inserted"] == 2 * ROWS
    history = places.sqlite(
        "SELECT pipeline_name, status, mode FROM ematix_flow_run_history WHERE mode <> 'transform' ORDER BY started_at"
    )
    assert history == [["fan::main.plain", "success", "append"], ["fan::main.cleaned", "success", "merge"]]
    assert len(places.sqlite("SELECT id FROM plain")) == ROWS - 1
    assert places.sqlite("SELECT count(*) FROM ematix_flow_ledger WHERE open_run_id IS NOT NULL") == [[0]]


# ── looking first ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_preview_dry_run_and_validate_see_every_target_and_change_nothing(places: Places) -> None:
    pipeline = places.fan_out(
        ematix.target(Archive, mode="append", target_connection=places.source),
        ematix.target(Cleaned, mode="merge", target_connection=places.shop),
        ematix.target(Unique, mode="merge", target_connection=places.shop),
    )
    assert [plan.path for plan in pipeline.preview().targets] == ["same_db", "cross_db", "cross_db"]
    archive, cleaned, unique = pipeline.dry_run().targets
    assert (archive.dry_run_rows_affected, cleaned.dry_run_rows_affected) == (ROWS, ROWS)
    assert unique.dry_run_rows_affected is None and "'name'" in (unique.dry_run_error or "")
    assert pipeline.validate().ok
    assert places.execute("SELECT to_regclass('analytics.archive')") == [(None,)]
    with pytest.raises(FlowError):
        places.sqlite("SELECT * FROM cleaned")
