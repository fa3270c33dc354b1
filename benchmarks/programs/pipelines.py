"""Our side of the load benchmarks: the same loads, declared."""

from __future__ import annotations

import os

from ematix_flow import Annotated, BigInt, Date, Integer, Numeric, Text, ematix, pk


@ematix.connection
class lake:
    kind = "object_store_local"
    format = "parquet"
    path = os.environ["LAKE"]


class Columns:
    l_partkey: BigInt | None
    l_suppkey: BigInt | None
    l_quantity: Numeric[15, 2] | None
    l_extendedprice: Numeric[15, 2] | None
    l_discount: Numeric[15, 2] | None
    l_tax: Numeric[15, 2] | None
    l_returnflag: Text | None
    l_linestatus: Text | None
    l_shipdate: Date | None
    l_commitdate: Date | None
    l_receiptdate: Date | None
    l_shipinstruct: Text | None
    l_shipmode: Text | None
    l_comment: Text | None


@ematix.table(schema="bench")
class Lineitem(Columns):
    l_orderkey: BigInt | None
    l_linenumber: Integer | None


@ematix.table(schema="bench")
class KeyedLineitem(Columns):
    l_orderkey: Annotated[BigInt, pk()]
    l_linenumber: Annotated[Integer, pk()]


@ematix.connection
class base:
    kind = "postgres"
    url = "${TARGET_URL}"


@ematix.connection
class shop:
    kind = "mysql"
    url = "${SOURCE_URL}"


ROWS = f"raw.lineitem_{os.environ['ROWS']}"
CHANGES = f"raw.changes_{os.environ['ROWS']}"
LAKE_TO_BASE = {"source_connection": "lake", "target_connection": "base"}


@ematix.pipeline(target=Lineitem, mode="append", source_table=ROWS, **LAKE_TO_BASE)
def append_rows(): ...


@ematix.pipeline(target=Lineitem, mode="truncate", source_table=ROWS, **LAKE_TO_BASE)
def replace_rows(): ...


@ematix.pipeline(target=KeyedLineitem, mode="merge", source_table=CHANGES, **LAKE_TO_BASE)
def merge_files(): ...


@ematix.pipeline(target=KeyedLineitem, mode="merge", target_connection="base")
def merge_table(conn):
    return "SELECT * FROM bench.changes"


@ematix.pipeline(target=Lineitem, mode="truncate", source_connection="base", target_connection="lake")
def unload(conn):
    return "SELECT * FROM bench.lineitem"


@ematix.pipeline(target=Lineitem, mode="truncate", source_connection="shop", target_connection="base")
def from_mariadb(conn):
    return "SELECT * FROM bench.lineitem"


@ematix.pipeline(target=Lineitem, mode="truncate", source_connection="shop", target_connection="base", parallel_reads=2)
def from_mariadb_in_parts(conn):
    return "SELECT * FROM bench.lineitem"
