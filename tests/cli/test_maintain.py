"""`flow maintain`: which tables it takes, what it prints, how it ends."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ematix_flow.cli.main import main
from ematix_flow.declare import registry

MODULE = """
import pyarrow as pa
from ematix_flow import BigInt, Maintenance, ematix

@ematix.connection
class lake:
    kind = "delta_local"
    path = "lake"

@ematix.connection
class till:
    kind = "sqlite"
    path = "till.db"

@ematix.table(schema="sales", maintenance=Maintenance(every="6h", target_file_size="64MB"))
class Orders:
    id: BigInt

@ematix.table(schema="sales")
class Notes:
    id: BigInt

@ematix.table(schema="main")
class Sold:
    id: BigInt

def rows(conn):
    return pa.table({"id": [1]})

for number in (1, 2):
    ematix.pipeline(name=f"orders{number}", target=Orders, target_connection="lake", mode="append")(rows)
ematix.pipeline(name="notes", target=Notes, target_connection="lake", mode="append")(rows)
ematix.pipeline(name="sold", target=Sold, target_connection="till", mode="append")(rows)
"""


@pytest.fixture(autouse=True)
def shop(tmp_project: Path) -> Iterator[Path]:
    """A project with two lake tables, one of which declares maintenance, and a table of a database."""
    (tmp_project / "maintained_shop.py").write_text(MODULE)
    sys.modules.pop("maintained_shop", None)  # every test declares anew
    with registry.isolated():
        yield tmp_project


def maintain(*words: str) -> int:
    return main(["maintain", "--module", "maintained_shop", *words])


def test_tables_that_declare_it_are_maintained_each_once(capsys: pytest.CaptureFixture[str]) -> None:
    for pipeline in ("orders1", "orders2", "notes"):
        assert main(["run", "--module", "maintained_shop", pipeline, "--json"]) == 0
    capsys.readouterr()
    assert maintain("--dry-run") == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "sales.orders in lake (delta_local)"
    assert said[1].startswith("  live      2 files, ")
    assert said[3:] == [
        "  last      never",
        "  would     put small files together into files of 64.0 MB",
        "  would     remove what the newest version does not need and is older than 7 days",
    ]
    assert maintain("--json") == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert (report["table"], report["connection"]) == ("sales.orders", "lake")
    assert report["before"]["live"]["files"] == 2 and report["after"]["live"]["files"] == 1
    assert report["done"] == ["2 files put together into 1"] and report["left_out"] == []

    assert maintain("notes") == 0  # it declares nothing, so the defaults are meant
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "sales.notes in lake (delta_local)"
    assert said[3] == "  done      there was nothing to do" and said[4].startswith("  took      ")
    assert maintain("--dry-run", "--json") == 0
    (looked,) = json.loads(capsys.readouterr().out)
    assert looked["last"] == report["at"]


def test_a_table_that_was_never_loaded_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert maintain() == 0
    assert "the table is not there yet" in capsys.readouterr().out


def test_an_unknown_table_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert maintain("sales.ordres") == 2
    assert "did you mean 'sales.orders'?" in capsys.readouterr().err


def test_a_table_of_a_database_is_an_error_and_the_others_are_done_all_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert maintain("main.sold", "sales.orders") == 1
    said = capsys.readouterr()
    assert "Only lake tables (Delta, Iceberg) are maintained, and main.sold is in 'till' (sqlite)" in said.err
    assert "sales.orders in lake (delta_local)" in said.out


def test_a_module_without_any_says_how_to_name_one(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (shop / "empty_shop.py").write_text("from ematix_flow import ematix\n")
    assert main(["maintain", "--module", "empty_shop"]) == 0
    assert "no table declares maintenance=" in capsys.readouterr().out
