"""Column lineage of the 125 queries of TPC-H and TPC-DS, held against what their column names say.

A column of these schemas begins with a short name of its table (`ss_item_sk`, `l_orderkey`): whatever way a query
takes, an origin whose prefix is another table's is wrong, and every column finds its table.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ematix_flow.watch.column_lineage import QueryLineage, SqlTable

TEXTS = Path(__file__).resolve().parents[2] / "benchmarks"
DS = {
    **{"ss": "store_sales", "sr": "store_returns", "cs": "catalog_sales", "cr": "catalog_returns", "ws": "web_sales"},
    **{"wr": "web_returns", "inv": "inventory", "s": "store", "cc": "call_center", "cp": "catalog_page"},
    **{"web": "web_site", "wp": "web_page", "w": "warehouse", "c": "customer", "ca": "customer_address"},
    **{"cd": "customer_demographics", "d": "date_dim", "hd": "household_demographics", "i": "item"},
    **{"ib": "income_band", "p": "promotion", "r": "reason", "sm": "ship_mode", "t": "time_dim"},
}
H = {
    **{"l": "lineitem", "o": "orders", "c": "customer", "p": "part", "s": "supplier", "ps": "partsupp", "n": "nation"},
    "r": "region",
}
WORDS = re.compile(r"\b([a-z]+)_[a-z0-9_]+\b", re.IGNORECASE)


def columns_of(texts: list[str], prefixes: dict[str, str]) -> dict[str, set[str]]:
    """Every word of the texts that looks like a column, by the table its prefix names."""
    found: dict[str, set[str]] = {}
    for text in texts:
        for word in WORDS.finditer(text.lower()):
            if word[1] in prefixes:
                found.setdefault(prefixes[word[1]], set()).add(word[0])
    return found


def queries() -> list[tuple[str, str, dict[str, str], dict[str, set[str]]]]:
    found = []
    for folder, prefixes in (("tpcds", DS), ("tpch", H)):
        texts = {path.stem: path.read_text() for path in sorted((TEXTS / folder).glob("q*.sql"))}
        columns = columns_of(list(texts.values()), prefixes)
        found += [(f"{folder}-{name}", text, prefixes, columns) for name, text in texts.items()]
    return found


QUERIES = queries()


@pytest.mark.parametrize(("text", "prefixes", "columns"), [q[1:] for q in QUERIES], ids=[q[0] for q in QUERIES])
def test_every_column_finds_its_table(text: str, prefixes: dict[str, str], columns: dict[str, set[str]]) -> None:
    def known(table: SqlTable) -> set[str]:
        return columns[table.name]

    query = QueryLineage(text.strip().rstrip(";"), "duckdb", known)
    assert query.tables and {table.name for table in query.tables} <= set(prefixes.values())
    origins = {origin for name in query.names if name != "*" for origin in query.of(name)} | set(query.influences())
    strangers = [o for o in origins if prefixes.get(o.column.lower().partition("_")[0]) != o.table.name]
    assert origins and not strangers
    assert not query.unknown


def test_they_are_all_there() -> None:
    assert len(QUERIES) == 125
