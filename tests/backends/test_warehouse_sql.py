"""The SQL and the job settings that the warehouses are given, as text, whatever a stand-in makes of them."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from typing import Annotated, Any

import pytest
import sqlglot
from sqlglot import ErrorLevel

from ematix_flow.backends import bigquery as bq, redshift as rs, snowflake as sf, warehouse
from ematix_flow.backends.bigquery_dialect import BigqueryDialect
from ematix_flow.backends.bigquery_session import BEGIN, BigquerySession
from ematix_flow.backends.redshift_dialect import RedshiftDialect
from ematix_flow.backends.snowflake_dialect import SnowflakeDialect
from ematix_flow.backends.warehouse import WarehouseBooks
from ematix_flow.backends.warehouse_dialect import WarehouseDialect
from ematix_flow.backends.warehouse_parts import Part
from ematix_flow.connections import BigQueryConnection, SnowflakeConnection
from ematix_flow.contracts.plans import Stamp
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.declare.table import ColumnSpec, declare_table, table_spec
from ematix_flow.declare.target import Mode, TargetSpec
from ematix_flow.errors import InvalidIdentifier, InvalidPlan, RouteImpossible, UnsupportedMode, WriteConflict
from ematix_flow.markers import pk
from ematix_flow.plan.ddl import create_statements
from ematix_flow.plan.physical import physical_columns
from ematix_flow.plan.strategies import Load, landed_profile, mode_checks, mode_statements
from ematix_flow.types import (
    JSON,
    JSONB,
    UUID,
    BigInt,
    Boolean,
    Bytes,
    Date,
    Double,
    Float,
    Integer,
    Numeric,
    SmallInt,
    String,
    Text,
    Timestamp,
    TimestampTZ,
)

pytestmark = pytest.mark.filterwarnings("ignore:You are using a Python version:FutureWarning")

NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
STAMP = Stamp("6f9619ff-8b86-d011-b42d-00c04fc964ff", NOW)
DIALECTS: tuple[WarehouseDialect, ...] = (SnowflakeDialect(), BigqueryDialect("proj"), RedshiftDialect())
EVERY = (
    SmallInt(),
    Integer(),
    BigInt(),
    Float(),
    Double(),
    Boolean(),
    Text(),
    String(20),
    Date(),
    Timestamp(),
    TimestampTZ(),
    JSON(),
    JSONB(),
    UUID(),
    Bytes(),
    Numeric(10, 2),
    Numeric(38, 0),
)
EACH = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)


class Declared:
    id: Annotated[BigInt, pk()]
    name: Text | None
    doc: JSON | None
    seen: TimestampTZ | None


def plan(dialect: WarehouseDialect, mode: Mode, **options: Any) -> Load:
    table = table_spec(declare_table(Declared, schema="shop", name="orders", frame_names=globals()))
    target = TargetSpec(table=table, connection="wh", mode=mode, **options)
    return Load(dialect, target, TableRef("shop", "orders"), table.columns, STAMP)


def parses(dialect: WarehouseDialect, *statements: str) -> None:
    for statement in statements:
        parsed = sqlglot.parse(statement, read=dialect.name, error_level=ErrorLevel.RAISE)
        assert len(parsed) == 1 and parsed[0] is not None
        assert type(parsed[0]).__name__ != "Command", f"not understood: {statement}"


def written(dialect: WarehouseDialect, mode: Mode, **options: Any) -> list[str]:
    return [statement.sql for statement in mode_statements(plan(dialect, mode, **options))]


@EACH
@pytest.mark.parametrize("mode", ["append", "truncate", "merge", "scd1"])
@pytest.mark.parametrize("deletes", [None, "hard"])
def test_every_statement_of_every_mode_is_sql_of_the_system(
    dialect: WarehouseDialect, mode: Mode, deletes: str | None
) -> None:
    if deletes and mode not in ("merge", "scd1"):
        return
    load = plan(dialect, mode, **({"handle_deletes": deletes} if deletes else {}))
    parses(dialect, *(statement.sql for statement in mode_statements(load)))
    parses(dialect, *(check.sql for check in mode_checks(load)), landed_profile(load, None).sql)


@EACH
def test_tables_and_books_are_made_in_sql_of_the_system(dialect: WarehouseDialect) -> None:
    columns = [*physical_columns(plan(dialect, "append").target)]
    columns += [ColumnSpec(f"c{place}", kind, nullable=True) for place, kind in enumerate(EVERY)]
    made = [s.sql for s in create_statements(dialect, TableRef("shop", "orders"), columns, ("id",), ())]
    parses(dialect, *made, *WarehouseBooks(dialect).create_statements())
    assert not any("PRIMARY KEY" in statement for statement in (*made, *WarehouseBooks(dialect).create_statements()))
    once = dialect.insert_once(
        dialect.table(TableRef("ematix_flow", "ledger")), "pipeline_name", "'p'", "generation", "0"
    )
    parses(dialect, once, dialect.pinned(dialect.table(TableRef("a", "b")), "SELECT 1 AS n"))


def test_truncate_and_merge_of_snowflake() -> None:
    landed = '"EMATIX_FLOW"."LANDED_2A877DA80E460A13"'
    empty, insert = written(SnowflakeDialect(), "truncate")
    assert empty == 'DELETE FROM "SHOP"."ORDERS"'
    assert insert.startswith(
        'INSERT INTO "SHOP"."ORDERS" ("ID", "NAME", "DOC", "SEEN", "_LOADED_AT", "_BATCH_ID") SELECT'
    )
    assert insert.endswith(f"FROM {landed} AS s")
    gone, update, fresh = written(SnowflakeDialect(), "merge", handle_deletes="hard")
    assert gone == (
        f'DELETE FROM "SHOP"."ORDERS" WHERE NOT EXISTS (SELECT 1 FROM {landed} AS s WHERE "ORDERS"."ID" = s."ID")'
    )
    assert update.startswith('UPDATE "SHOP"."ORDERS" SET "NAME" = s."NAME", "DOC" = s."DOC", "SEEN" = s."SEEN", ')
    assert update.endswith(
        f'FROM {landed} AS s WHERE "ORDERS"."ID" = s."ID" AND ("ORDERS"."NAME" IS DISTINCT FROM s."NAME" OR '
        'TO_JSON("ORDERS"."DOC") IS DISTINCT FROM TO_JSON(s."DOC") OR "ORDERS"."SEEN" IS DISTINCT FROM s."SEEN")'
    )
    assert fresh.endswith(
        f'FROM {landed} AS s WHERE NOT EXISTS (SELECT 1 FROM "SHOP"."ORDERS" AS t WHERE t."ID" = s."ID")'
    )


def test_truncate_and_merge_of_bigquery() -> None:
    dialect = BigqueryDialect("proj")
    assert written(dialect, "truncate")[0] == "DELETE FROM `proj`.`shop`.`orders` WHERE TRUE"
    gone, update, _ = written(dialect, "merge", handle_deletes="hard")
    assert gone.startswith(
        "DELETE FROM `proj`.`shop`.`orders` WHERE NOT EXISTS (SELECT 1 FROM `proj`.`ematix_flow`.`landed_"
    )
    assert gone.endswith("AS s WHERE `orders`.`id` = s.`id`)")
    assert "TO_JSON_STRING(`orders`.`doc`) IS DISTINCT FROM TO_JSON_STRING(s.`doc`)" in update
    assert "`_loaded_at` = CAST('2026-03-01T12:00:00.000000+00:00' AS TIMESTAMP)" in update


def test_truncate_and_merge_of_redshift() -> None:
    gone, update, fresh = written(RedshiftDialect(), "merge", handle_deletes="hard")
    assert 'DELETE FROM "shop"."orders" WHERE NOT EXISTS' in gone and " AS t " not in gone + update
    assert "IS DISTINCT FROM" not in gone + update + fresh, "Redshift does not know it"
    same = '"orders"."name" = s."name" OR ("orders"."name" IS NULL AND s."name" IS NULL)'
    assert f"(CASE WHEN {same} THEN 0 ELSE 1 END = 1)" in update


@pytest.mark.parametrize("dialect", [SnowflakeDialect(), RedshiftDialect()], ids=lambda d: d.name)
def test_a_name_that_holds_an_alias_is_left_alone(dialect: WarehouseDialect) -> None:
    column = dialect.quote('a t."b')
    sql = dialect.delete_where(dialect.table(TableRef("x", "y")), "t", f"t.{column} = 't.1'")
    assert sql == f"DELETE FROM {dialect.table(TableRef('x', 'y'))} WHERE {dialect.quote('y')}.{column} = 't.1'"


@EACH
@pytest.mark.parametrize("kind", EVERY, ids=str)
def test_a_column_is_described_as_it_was_made(dialect: WarehouseDialect, kind: Any) -> None:
    native = dialect.type_sql(kind)
    assert dialect.from_native(native) is not None
    assert dialect.same_type(kind, native)
    other = Boolean() if not isinstance(kind, Boolean) else Date()
    assert not dialect.same_type(other, native)


@EACH
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ('it\'s a \\ "test"', Text()),
        (Decimal("-1.50"), Numeric(10, 2)),
        (True, Boolean()),
        (NOW, TimestampTZ()),
        ("2026-03-01", Date()),
        (b"\x00\xff", Bytes()),
        ('{"a": "\\n"}', JSON()),
        (None, Text()),
    ],
    ids=str,
)
def test_constants_are_sql_of_the_system(dialect: WarehouseDialect, value: Any, kind: Any) -> None:
    parses(dialect, f"SELECT {dialect.literal(value, kind)} AS x, {dialect.lowest(kind)} AS y")
    if isinstance(value, str) and isinstance(kind, Text) and dialect.name != "redshift":
        literal = sqlglot.parse_one(f"SELECT {dialect.literal(value, kind)}", read=dialect.name).expressions[0]
        assert literal.this == value, "the parser reads back just what was meant"


def test_moments_of_redshift_need_no_guessing() -> None:
    for said in (NOW, "2026-03-01T12:00:00.000000Z"):
        literal = RedshiftDialect().literal(said, TimestampTZ())
        assert literal == "CAST('2026-03-01 12:00:00.000000+00:00' AS timestamptz)"


@EACH
def test_values_that_do_not_fit_are_refused_by_the_query_itself(dialect: WarehouseDialect) -> None:
    found = dialect.fit("x", Numeric(38, 0), SmallInt(), "size")
    assert found is not None and "-32768 AND 32767" in found and "ematix-flow-error" in found
    parses(dialect, f"SELECT {found} AS size FROM t")
    assert dialect.fit("x", Text(), BigInt(), "size") is None, "Spark reads numbers from text"
    assert dialect.fit("x", None, BigInt(), "size") is None
    assert dialect.fit("x", Double(), Double(), "size") == "x"


@EACH
def test_histories_are_refused(dialect: WarehouseDialect) -> None:
    with pytest.raises(UnsupportedMode, match=dialect.system):
        dialect.row_hash([("x", Text())])
    with pytest.raises(UnsupportedMode):
        dialect.as_instant("x", Date())


def test_numbers_too_long_for_a_system_are_refused() -> None:
    for dialect in DIALECTS:
        with pytest.raises(InvalidPlan, match="digits"):
            dialect.type_sql(Numeric(77, 0))
    assert BigqueryDialect().type_sql(Numeric(38, 20)) == "BIGNUMERIC(38, 20)"
    assert RedshiftDialect().type_sql(String(20)) == "varchar(80)", "its lengths are bytes"


def test_names_that_bigquery_cannot_hold_are_refused() -> None:
    for name in ("a`b", "a\\b", "", "x" * 301):
        with pytest.raises(InvalidIdentifier):
            BigqueryDialect().quote(name)


def test_tables_as_people_write_them() -> None:
    assert SnowflakeDialect().written('db.Analytics."Order Lines"') == '"DB"."ANALYTICS"."Order Lines"'
    assert BigqueryDialect("p").written("`d`.t") == "`d`.`t`"
    assert RedshiftDialect().written("analytics.orders") == '"analytics"."orders"'


# ── beside others ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_transaction_given_up_for_another_is_tried_again_and_an_overtaken_run_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(warehouse, "_WAITS_S", (0.0, 0.0))
    outcomes: list[Any] = [warehouse.beside_another("X"), warehouse.beside_another("X"), "done"]

    def work() -> Any:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert warehouse.patiently(work) == "done"
    outcomes += [warehouse.beside_another("X") for _ in range(4)]
    with pytest.raises(WriteConflict):
        warehouse.patiently(work)
    assert len(outcomes) == 1
    outcomes[:] = [WriteConflict("Another run was faster."), "never"]
    with pytest.raises(WriteConflict, match="faster"):
        warehouse.patiently(work)
    assert outcomes == ["never"]


def test_a_spark_on_other_machines_is_refused_as_a_reader() -> None:
    class Context:
        master = "spark://far:7077"

    class Session:
        sparkContext = Context()

    backend = bq.BigqueryBackend(CONNECTION)
    with pytest.raises(RouteImpossible, match="files of this machine"):
        backend._require_one_machine(Session())
    Context.master = "local[2]"
    backend._require_one_machine(Session())


# ── bulk paths ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_snowflake_puts_files_and_copies_them() -> None:
    assert sf.put("/tmp/it's.parquet", "S.%T/a") == (
        "PUT 'file:///tmp/it\\'s.parquet' @S.%T/a AUTO_COMPRESS = FALSE OVERWRITE = TRUE"
    )
    copied = sf.copy_into('"S"."T"', "S.%T")
    assert copied.startswith('COPY INTO "S"."T" FROM @S.%T FILE_FORMAT = (TYPE = PARQUET ')
    assert copied.endswith("MATCH_BY_COLUMN_NAME = CASE_SENSITIVE ON_ERROR = ABORT_STATEMENT")
    parses(SnowflakeDialect(), copied)


def test_snowflake_logs_in_by_password_or_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(sf.ADDRESS, raising=False)
    plain = SnowflakeConnection(name="w", account="acme", user="ann", password="pw", warehouse="XS", role="loader")
    given = sf.connect_arguments(plain)
    assert {key: given[key] for key in ("account", "user", "password", "warehouse", "role")} == {
        "account": "acme",
        "user": "ann",
        "password": "pw",
        "warehouse": "XS",
        "role": "loader",
    }
    assert given["session_parameters"]["TIMEZONE"] == "UTC" and "database" not in given and "host" not in given
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(65537, 2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    by_key = sf.connect_arguments(SnowflakeConnection(name="w", account="acme", user="ann", private_key=pem))
    assert isinstance(by_key["private_key"], bytes) and "password" not in by_key


def test_redshift_copies_the_files_of_a_manifest_with_a_role() -> None:
    sql = rs.copy_from('"e"."p"', "s3://bucket/x/manifest.json", "arn:aws:iam::1:role/r", RedshiftDialect())
    assert sql == (
        "COPY \"e\".\"p\" FROM 's3://bucket/x/manifest.json' IAM_ROLE 'arn:aws:iam::1:role/r' "
        "FORMAT AS PARQUET MANIFEST"
    )
    assert rs.manifest("s3://b/x", [Part("a.parquet", 3, 99)]) == (
        '{"entries": [{"url": "s3://b/x/a.parquet", "mandatory": true, "meta": {"content_length": 99}}]}'
    )


def test_a_load_job_of_bigquery_truncates_when_it_may_create_and_appends_when_not() -> None:
    fields = bq.transported_fields(
        [ColumnSpec("id", BigInt()), ColumnSpec("price", Numeric(10, 2)), ColumnSpec("doc", JSON())],
        BigqueryDialect("p"),
        ["c0", "c1", "c2"],
    )
    creating = bq.load_config(fields, create_if_not_exists=True).to_api_repr()["load"]
    adding = bq.load_config(fields, create_if_not_exists=False).to_api_repr()["load"]
    assert (creating["sourceFormat"], creating["writeDisposition"], creating["createDisposition"]) == (
        "PARQUET",
        "WRITE_TRUNCATE",
        "CREATE_IF_NEEDED",
    )
    assert (adding["writeDisposition"], adding["createDisposition"]) == ("WRITE_APPEND", "CREATE_NEVER")
    told = [(field["name"], field["type"], field.get("precision")) for field in creating["schema"]["fields"]]
    assert told == [("c0", "INT64", None), ("c1", "NUMERIC", 10), ("c2", "STRING", None)]


CONNECTION = BigQueryConnection(name="w", project="proj", dataset="shop", location="EU")


def test_bigquery_names_are_completed_from_the_connection() -> None:
    names = ("orders", "other.orders", "`far`.other.orders")
    assert [bq.full_name(CONNECTION, name) for name in names] == [
        "proj.shop.orders",
        "proj.other.orders",
        "far.other.orders",
    ]


def test_bigquery_lands_the_files_of_all_finished_tasks() -> None:
    backend = bq.BigqueryBackend(CONNECTION)
    columns = [ColumnSpec("id", BigInt()), ColumnSpec("doc", JSON())]
    relation = backend.take_in(None, "run", columns, [Part("1-a.parquet", 1, 1), Part("2-b.parquet", 1, 1)])
    assert relation.count("UNION ALL") == 1 and "_1_a`" in relation and "_2_b`" in relation
    parses(backend.dialect, f"SELECT * FROM {relation} AS p")
    empty = backend.take_in(None, "run", columns, [])
    assert empty == "(SELECT CAST(NULL AS INT64) AS `c0`, CAST(NULL AS STRING) AS `c1` LIMIT 0)"


class NoRows(list[Any]):
    """What a statement gives that is no query."""

    schema = ()


class Job:
    """What the session asks of a job."""

    num_dml_affected_rows: int | None = None

    class session_info:
        session_id = "s-1"

    def result(self) -> NoRows:
        return NoRows()


class RecordingClient:
    """Keeps statements and their settings, as the vendor's own objects write them."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def query(self, sql: str, job_config: Any) -> Job:
        self.asked.append((sql, job_config.to_api_repr()))
        return Job()

    def close(self) -> None:
        self.asked.append(("closed", {}))


def test_a_transaction_of_bigquery_is_one_session() -> None:
    client = RecordingClient()
    session = BigquerySession(client, CONNECTION)
    for sql in ("SELECT 1", BEGIN, "DELETE FROM t WHERE TRUE", "COMMIT", "SELECT 2"):
        session.execute(sql)
    session.close()
    told = {sql: config.get("query", {}) for sql, config in client.asked}
    assert [sql for sql, _ in client.asked] == [
        "SELECT 1",
        BEGIN,
        "DELETE FROM t WHERE TRUE",
        "COMMIT",
        "CALL BQ.ABORT_SESSION()",
        "SELECT 2",
        "closed",
    ]
    assert told[BEGIN]["createSession"] is True
    inside = [{"key": "session_id", "value": "s-1"}]
    assert told["DELETE FROM t WHERE TRUE"]["connectionProperties"] == inside == told["COMMIT"]["connectionProperties"]
    assert "connectionProperties" not in told["SELECT 1"] and "connectionProperties" not in told["SELECT 2"]
    assert told["SELECT 1"]["defaultDataset"] == {"projectId": "proj", "datasetId": "shop"}
    assert told["SELECT 1"]["useLegacySql"] is False


def test_described_columns_of_bigquery_are_in_the_words_of_create_table() -> None:
    from google.cloud.bigquery import SchemaField

    fields = [
        SchemaField("a", "INTEGER", mode="REQUIRED"),
        SchemaField("b", "NUMERIC", precision=10, scale=2),
        SchemaField("c", "STRING", max_length=5),
        SchemaField("d", "STRING", mode="REPEATED"),
    ]
    assert [bq.native_type(field) for field in fields] == ["INTEGER", "NUMERIC(10, 2)", "STRING(5)", "ARRAY<STRING>"]
    assert BigqueryDialect().from_native("ARRAY<STRING>") is None
