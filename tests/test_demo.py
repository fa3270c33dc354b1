"""`make demo` as a user runs it: in a process of its own, in an empty folder."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

DEMO = Path(__file__).resolve().parents[1] / "demo"

# Its time is part of what is promised, so it runs while nothing else uses the machine.
pytestmark = pytest.mark.alone


@dataclass(frozen=True)
class Demo:
    """What one run of the demo left behind."""

    folder: Path
    said: str
    seconds: float

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What a query finds in its SQLite database."""
        db = sqlite3.connect(self.folder / "shop.db")
        try:
            return db.execute(query).fetchall()
        finally:
            db.close()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    elsewhere = tmp_path_factory.mktemp("demo")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EMATIX_FLOW_")}
    environment["EMATIX_FLOW_APPCDS"] = "use"  # recording a class archive afterwards would disturb the next test
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, str(DEMO / "run.py"), str(elsewhere / "out")],
        cwd=elsewhere,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    seconds = time.perf_counter() - began
    assert done.returncode == 0, done.stdout + done.stderr
    return Demo(elsewhere / "out", done.stdout, seconds)


def test_it_takes_less_than_90_seconds(demo: Demo) -> None:
    assert demo.seconds < 90


def test_orders_are_cleaned_and_none_is_loaded_twice(demo: Demo) -> None:
    assert demo.rows("SELECT order_id, item, amount, ordered_on FROM orders ORDER BY order_id") == [
        (101, "teapot", "24.90", "2026-03-01"),
        (102, "lamp", "59.00", "2026-03-01"),
        (103, "teapot", "24.90", "2026-03-01"),
        (104, "rug", "149.00", "2026-03-02"),
        (105, "lamp", None, "2026-03-02"),
        (106, "teapot", "24.90", "2026-02-28"),
    ]
    assert demo.rows("SELECT last_value FROM ematix_flow_watermarks") == [("2026-03-02T09:50:00.000000Z",)]


def test_customers_are_as_on_the_second_day(demo: Demo) -> None:
    assert demo.rows("SELECT customer_id, name, email, city, credit, member_since FROM customers ORDER BY 1") == [
        (1, "Ada Brandt", "ada@example.com", "Hamburg", "500.00", "2024-05-01"),
        (2, "Ben Okoro", "ben@example.com", "Leeds", "120.50", "2023-11-20"),
        (3, "Chloe Martin", "chloe@example.com", "Paris", "80.00", "2025-02-14"),
        (5, "Finn Lind", None, "Oslo", None, "2026-03-02"),
    ]


def test_the_history_has_the_change_the_correction_the_late_row_and_the_vanished_key(demo: Demo) -> None:
    rows = demo.rows(
        "SELECT customer_id, name, city, substr(valid_from, 1, 10), substr(valid_to, 1, 10), is_current "
        "FROM customer_history ORDER BY customer_id, valid_from"
    )
    closed = next(row[4] for row in rows if row[0] == 4)
    assert rows == [
        (1, "Ada Brandt", "Berlin", "2026-01-10", "2026-03-02", 0),
        (1, "Ada Brandt", "Hamburg", "2026-03-02", None, 1),
        (2, "Ben Okoro", "Leeds", "2026-01-15", None, 1),
        (3, "Chloe Martin", "Lyon", "2026-01-20", "2026-02-10", 0),
        (3, "Chloe Martin", "Nantes", "2026-02-10", "2026-02-25", 0),
        (3, "Chloe Martin", "Paris", "2026-02-25", None, 1),
        (4, "Dev Patel", "Pune", "2026-02-01", closed, 0),
        (5, "Finn Lind", "Oslo", "2026-03-02", None, 1),
    ]
    assert closed is not None and closed >= "2026-02-01"


def test_the_report_is_a_parquet_folder_with_one_part_per_day(demo: Demo) -> None:
    import pyarrow.dataset as dataset

    files = dataset.dataset(demo.folder / "lake" / "reports" / "order_report", format="parquet", partitioning="hive")
    rows = files.to_table().select(["order_id", "customer", "ordered_on"]).to_pylist()
    assert sorted((row["order_id"], row["customer"], str(row["ordered_on"])) for row in rows) == [
        (101, "Ada Brandt", "2026-03-01"),
        (102, "Chloe Martin", "2026-03-01"),
        (103, None, "2026-03-01"),
        (104, "Ben Okoro", "2026-03-02"),
        (105, "Ada Brandt", "2026-03-02"),
        (106, "Ben Okoro", "2026-02-28"),
    ]


def test_it_shows_the_code_that_ran_and_what_came_of_it(demo: Demo) -> None:
    shop = (DEMO / "shop.py").read_text(encoding="utf-8").splitlines()
    shown = [line.removeprefix("  │ ") for line in demo.said.splitlines() if line.startswith("  │ ")]
    assert 'mode="scd2",' in [line.strip() for line in shown]
    raw = [line for file in sorted(DEMO.glob("data/*/*")) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [line for line in shown if line not in shop and line not in raw] == []
    for words in (
        "load_orders: 3 inserted · watermark 2026-03-02T09:50:00.000000Z  (Spark, ",
        "load_customers: 1 inserted · 2 updated · 1 deleted · 1 unchanged  (Spark, ",
        "keep_history: 3 inserted · 2 updated · 2 closed  (Spark, ",
        "sum_up_cities: 3 inserted  (pushed down, ",
        "publish_report: 6 inserted  (Spark, ",
    ):
        assert words in demo.said, words
    listed = demo.said.partition("flow runs list")[2]
    assert listed.count("succeeded") == 8 and "failed" not in listed
    assert "\x1b" not in demo.said, "no colour without a terminal"


def test_it_takes_only_a_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("keep")
    done = subprocess.run(
        [sys.executable, str(DEMO / "run.py"), str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1 and "holds something else" in done.stderr
    assert (tmp_path / "mine.txt").read_text() == "keep"
