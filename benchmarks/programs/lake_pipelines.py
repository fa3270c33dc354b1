"""Our side of the lake benchmarks: the same loads, declared."""

from __future__ import annotations

import os

from ematix_flow import Annotated, BigInt, Date, Integer, Numeric, Text, ematix, pk


@ematix.connection
class files:
    kind = "object_store_local"
    format = "parquet"
    path = os.environ["LAKE"]


@ematix.connection
class delta:
    kind = "delta_local"
    path = os.environ["DELTA"]


@ematix.connection
class bucket:
    kind = "object_store_s3"
    format = "parquet"
    endpoint = "${S3_ENDPOINT}"
    bucket = "${S3_BUCKET}"
    region = "us-east-1"
    access_key_id = "${S3_KEY}"
    secret_access_key = "${S3_SECRET}"


@ematix.table(schema="bench")
class Lineitem:
    l_orderkey: Annotated[BigInt, pk()]
    l_linenumber: Annotated[Integer, pk()]
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


ROWS = f"raw.lineitem_{os.environ['ROWS']}"
CHANGES = f"raw.changes_{os.environ['ROWS']}"


@ematix.pipeline(source_connection="files", source_table=ROWS, target=Lineitem, target_connection="delta", mode="merge")
def fill_delta(): ...


@ematix.pipeline(
    source_connection="files", source_table=CHANGES, target=Lineitem, target_connection="delta", mode="merge"
)
def merge_delta(): ...


@ematix.pipeline(
    source_connection="files", source_table=ROWS, target=Lineitem, target_connection="bucket", mode="truncate"
)
def write_s3(): ...


@ematix.table(schema="bench", name="read_back")
class ReadBack(Lineitem): ...


@ematix.pipeline(
    source_connection="bucket",
    source_table="bench.lineitem",
    target=ReadBack,
    target_connection="files",
    mode="truncate",
)
def read_s3(): ...
