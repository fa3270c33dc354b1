"""The published table of types says what the dialects do, and what the tests see refused."""

from __future__ import annotations

import re

import pytest

from ematix_flow.backends.duckdb_dialect import DuckdbDialect
from ematix_flow.backends.mysql_dialect import MysqlDialect
from ematix_flow.backends.postgres_dialect import PostgresDialect
from ematix_flow.backends.sqlite import SqliteDialect
from ematix_flow.contracts.dialect import Dialect
from ematix_flow.declare.columns import ALL_TYPES, ColumnType, Numeric, String
from ematix_flow.spark.types import to_spark_type
from tests.backends.type_values import REFUSED
from tests.docs.snippets import ROOT

PAGE = (ROOT / "docs" / "types.md").read_text(encoding="utf-8")
DIALECTS: dict[str, Dialect] = {
    "PostgreSQL": PostgresDialect(),
    "MySQL, MariaDB": MysqlDialect(),
    "SQLite": SqliteDialect(),
    "DuckDB": DuckdbDialect(),
}
FILES = "Parquet, ORC"


def table_below(heading: str) -> list[dict[str, str]]:
    """The rows of the first table below a heading, by the names of its columns."""
    lines = [line for line in PAGE.split(f"## {heading}\n")[1].split("\n## ")[0].splitlines() if line.startswith("|")]
    names, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(names, row, strict=True)) for row in rows]


def words(cell: str) -> list[str]:
    """What stands in code marks in a cell."""
    return re.findall("`([^`]+)`", cell)


def example(written: str) -> ColumnType:
    """The type that a row speaks of; lengths are numbers that occur nowhere else."""
    (cls,) = [cls for cls in ALL_TYPES if cls.__name__ == written.split("[")[0]]
    return Numeric(31, 17) if cls is Numeric else String(253) if cls is String else cls()


def lettered(name: str) -> str:
    """The name of an example's type with the letters of the page."""
    return name.replace("31,17", "p,s").replace("253", "n")


NAMES = table_below("What a column is called")


def test_every_type_has_its_row() -> None:
    shown = [words(row["type"])[0].split("[")[0] for row in NAMES]
    assert shown == [cls.__name__ for cls in ALL_TYPES]


@pytest.mark.parametrize("row", NAMES, ids=lambda row: row["type"].strip("`"))
def test_a_type_is_called_what_the_page_says(row: dict[str, str]) -> None:
    kind = example(*words(row["type"]))
    for system, dialect in DIALECTS.items():
        made = lettered(dialect.type_sql(kind))
        # MySQL says behind the name in which characters a text is kept, and in a comment which type is meant.
        made = re.sub(r" (CHARACTER SET|COMMENT) .*", "", made)
        assert words(row[system]) == [made], system
    assert words(row[FILES]) == [lettered(to_spark_type(kind).simpleString())]
    assert set(row) == {"type", FILES, *DIALECTS}


def test_what_is_refused_is_what_the_page_says() -> None:
    by_name = {cls.__name__: cls.kind for cls in ALL_TYPES}
    told = {
        (row["system"], by_name[word.split("[")[0]])
        for row in table_below("What is refused")
        for word in words(row["types"])
    }
    assert told == {(system, kind) for system, refused in REFUSED.items() for kind, _ in refused}
