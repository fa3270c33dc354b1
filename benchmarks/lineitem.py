"""The rows of the load benchmarks: 16 columns in the shape of TPC-H's lineitem, made up, the same on every machine.

Decimals are exact, dates are dates, the text is short and varied. One order has one to seven lines.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

COLUMNS = {
    "l_orderkey": "bigint",
    "l_linenumber": "int",
    "l_partkey": "bigint",
    "l_suppkey": "bigint",
    "l_quantity": "decimal(15,2)",
    "l_extendedprice": "decimal(15,2)",
    "l_discount": "decimal(15,2)",
    "l_tax": "decimal(15,2)",
    "l_returnflag": "string",
    "l_linestatus": "string",
    "l_shipdate": "date",
    "l_commitdate": "date",
    "l_receiptdate": "date",
    "l_shipinstruct": "string",
    "l_shipmode": "string",
    "l_comment": "string",
}
_CHUNK = 500_000
_WORDS = [
    "carefully",
    "final",
    "deposits",
    "sleep",
    "furiously",
    "above",
    "the",
    "ironic",
    "accounts",
    "blithely",
    "regular",
    "packages",
    "nag",
    "quickly",
    "express",
    "requests",
    "haggle",
    "slyly",
    "bold",
    "theodolites",
    "wake",
    "pending",
    "pinto",
    "beans",
    "unusual",
    "foxes",
    "boost",
    "split",
]
_INSTRUCTIONS = ["DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN"]
_MODES = ["REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB"]


def write(folder: Path, rows: int) -> None:
    """Parquet files of half a million rows each; the folder is left alone when it is there."""
    if folder.exists():
        return
    part_folder = folder.with_name(folder.name + ".part")
    part_folder.mkdir(parents=True)
    for number, first in enumerate(range(0, rows, _CHUNK)):
        table = _rows(first, min(_CHUNK, rows - first))
        pq.write_table(table, part_folder / f"part-{number:03d}.parquet")
    part_folder.rename(folder)


def write_changes(folder: Path, rows: int, share: float) -> None:
    """A share of the rows again, every n-th, with another quantity, price and comment."""
    if folder.exists():
        return
    step = round(1 / share)
    tables = []
    for first in range(0, rows, _CHUNK):
        table = _rows(first, min(_CHUNK, rows - first)).take(pa.array(range(0, min(_CHUNK, rows - first), step)))
        for name in ("l_quantity", "l_extendedprice"):
            place = table.column_names.index(name)
            more = pc.cast(pc.add(table.column(name), pa.scalar(1)), table.schema.field(name).type)
            table = table.set_column(place, table.schema.field(name), more)
        changed = pc.binary_join_element_wise(table.column("l_comment"), "again", " ")
        tables.append(table.set_column(table.column_names.index("l_comment"), "l_comment", changed))
    folder.mkdir(parents=True)
    pq.write_table(pa.concat_tables(tables), folder / "part-000.parquet")


def _rows(first: int, count: int) -> pa.Table:
    random = np.random.default_rng(first)
    place = np.arange(first, first + count, dtype=np.int64)
    quantity = random.integers(1, 51, count)
    price = random.integers(90_000, 10_500_000, count)
    shipped = random.integers(8_035, 10_560, count)
    words = pa.array(_WORDS)

    def decimal(unscaled: np.ndarray) -> pa.Array:
        whole = pa.array(unscaled).cast(pa.decimal128(19, 0))
        return pc.multiply(whole, pa.scalar("0.01").cast(pa.decimal128(3, 2))).cast(pa.decimal128(15, 2))

    def chosen(values: list[str]) -> pa.Array:
        return pa.array(values).take(pa.array(random.integers(0, len(values), count)))

    def dates(days: np.ndarray) -> pa.Array:
        return pa.array(days.astype(np.int32)).cast(pa.date32())

    def sentence() -> pa.Array:
        parts = [words.take(pa.array(random.integers(0, len(_WORDS), count))) for _ in range(4)]
        return pc.binary_join_element_wise(*parts, " ")

    columns = {
        "l_orderkey": pa.array(place // 4 + 1),
        "l_linenumber": pa.array((place % 4 + 1).astype(np.int32)),
        "l_partkey": pa.array(random.integers(1, 200_001, count)),
        "l_suppkey": pa.array(random.integers(1, 10_001, count)),
        "l_quantity": decimal(quantity * 100),
        "l_extendedprice": decimal(price),
        "l_discount": decimal(random.integers(0, 11, count)),
        "l_tax": decimal(random.integers(0, 9, count)),
        "l_returnflag": chosen(["R", "A", "N"]),
        "l_linestatus": chosen(["O", "F"]),
        "l_shipdate": dates(shipped),
        "l_commitdate": dates(shipped + random.integers(-30, 61, count)),
        "l_receiptdate": dates(shipped + random.integers(1, 31, count)),
        "l_shipinstruct": chosen(_INSTRUCTIONS),
        "l_shipmode": chosen(_MODES),
        "l_comment": sentence(),
    }
    return pa.table(columns)
