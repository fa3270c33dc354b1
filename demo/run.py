"""The demo: two days of a small shop's raw files go into SQLite and a Parquet folder. No server is needed.

    python demo/run.py [FOLDER]

The results are left in FOLDER (`demo/out` unless told otherwise, made anew each time) to look at afterwards. Every
piece of code that is shown is read from `shop.py`, so that what you read is what ran.
"""

from __future__ import annotations

import inspect
import io
import os
import shutil
import sqlite3
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import shop

from ematix_flow.cli.console import Console
from ematix_flow.cli.main import main as flow
from ematix_flow.declare.pipeline import Pipeline

HERE = Path(__file__).resolve().parent
DAYS = {"day 1": HERE / "data" / "day1", "day 2": HERE / "data" / "day2"}
COUNTS = ("inserted", "updated", "closed", "deleted", "unchanged")
MARKER = ".made-by-the-demo"

console = Console()


def main(arguments: Sequence[str]) -> int:
    """Both days, step by step; the exit code."""
    out = Path(arguments[0]).resolve() if arguments else HERE / "out"
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # a step is told before it is waited for, through a pipe too
    began = time.perf_counter()
    move_in(out)

    title("Day 1: orders.jsonl and customers.csv arrive")
    arrive("day 1")
    raw("customers.csv")

    step("A table is a class: a type per column, and how raw values are cleaned on the way in", shop.Customers)
    step("append: new rows are added; the watermark remembers how far we got", shop.load_orders)
    print("  Spark starts once, at the first load; the others find it running.\n")
    load(shop.load_orders)
    table("orders", "order_id, customer_id, item, amount, ordered_on, recorded_at", order="order_id")

    step("merge: one row per customer, the newest", shop.load_customers)
    load(shop.load_customers)
    table("customers", "customer_id, name, email, city, credit", order="customer_id")

    step("scd2: every version of a customer, from when until when", shop.keep_history)
    load(shop.keep_history)
    history()

    title("Day 2: changes, a late row, a correction, dirty values, and customer 4 is gone")
    arrive("day 2")
    raw("customers.csv")
    raw("orders.jsonl")

    heading("append again: order 103 is in both files; only what is newer than the watermark is added")
    load(shop.load_orders)
    table("orders", "order_id, item, amount, ordered_on, recorded_at", order="order_id")

    heading(
        'merge again: spaces, upper case and odd dates are no changes; "n/a" and "" are NULL; customer 4 is removed'
    )
    load(shop.load_customers)
    table("customers", "customer_id, name, email, city, credit, member_since", order="customer_id")

    heading("scd2 again")
    load(shop.keep_history)
    history()
    print(
        textwrap.indent(
            "1  moved: the old version ends where the new one begins\n"
            "2  a correction for a time we knew: the version is mended, none is added\n"
            "3  Nantes arrived late and took its place between Lyon and Paris\n"
            "4  is no longer in the file: the last version is closed\n"
            "5  is new\n",
            "  ",
        )
    )

    title("From the database")
    step("In one database nothing has to move: this one is pushed down, without Spark", shop.sum_up_cities)
    load(shop.sum_up_cities)
    table("city_sales", "city, orders, amount", order="city")

    step("A Parquet folder, one part per day", shop.publish_report)
    load(shop.publish_report)
    parquet_files(out / "lake" / "reports" / "order_report")

    title("What was run: flow runs list")
    flow(["runs", "list"])
    print(
        f"\ndone in {time.perf_counter() - began:.0f} s; the database, the Parquet folder and the run log are in {out}"
    )
    return 0


def move_in(out: Path) -> None:
    """An empty folder for everything the demo makes, and nothing of the user's own settings."""
    if out.exists():
        if any(out.iterdir()) and not (out / MARKER).exists():
            raise SystemExit(f"{out} holds something else; name a folder that does not exist")
        shutil.rmtree(out)
    out.mkdir(parents=True)
    (out / MARKER).touch()
    os.environ["SHOP_OUT"] = str(out)
    os.environ["EMATIX_FLOW_RUN_LOG_PATH"] = str(out / "run_log.db")
    os.chdir(out)


def arrive(day: str) -> None:
    """From now on `${SHOP_INBOX}` is that day's folder."""
    os.environ["SHOP_INBOX"] = str(DAYS[day])


def load(pipeline: Pipeline) -> None:
    """Run it, and say what it did."""
    began = time.perf_counter()
    result = pipeline.sync()
    for part in [result] if "status" in result else result.values():
        counts = " · ".join(f"{part[f'rows_{name}']} {name}" for name in COUNTS if f"rows_{name}" in part)
        engine = "pushed down" if part["path"] == "same_db" else "Spark"
        mark = f" · watermark {part['watermark']}" if "watermark" in part else ""
        print(f"  {pipeline.name}: {counts}{mark}  ({engine}, {time.perf_counter() - began:.1f} s)\n")


# ── showing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def title(words: str) -> None:
    """The beginning of a part."""
    print(painted(f"\n━━ {words} " + "━" * max(0, 92 - len(words)), "1;36") + "\n")


def heading(words: str) -> None:
    """The beginning of a step."""
    print(painted(f"▶ {words}", "1") + "\n")


def step(words: str, thing: Any) -> None:
    """A step, and the lines of `shop.py` that declare it."""
    heading(words)
    source = inspect.getsource(thing.spec.function if isinstance(thing, Pipeline) else thing)
    print(painted(textwrap.indent(textwrap.dedent(source), "  │ "), "2"))


def raw(name: str) -> None:
    """A raw file as it is."""
    text = (Path(os.environ["SHOP_INBOX"]) / name).read_text(encoding="utf-8")
    print(f"  {name}\n" + painted(textwrap.indent(text, "  │ "), "2"))


def table(name: str, columns: str, *, order: str) -> None:
    """A table of the SQLite database."""
    shown = select(f"SELECT {columns} FROM {name} ORDER BY {order}")
    console.table(
        [column.strip() for column in columns.split(",")],
        [["NULL" if v is None else short(v) for v in row] for row in shown],
    )
    print()


def history() -> None:
    """The customers' versions, an open end shown as such."""
    rows = select(
        "SELECT customer_id, name, city, valid_from, valid_to, is_current FROM customer_history "
        "ORDER BY customer_id, valid_from"
    )
    shown = [
        (key, name, city, short(begin), short(end) if end else "…", "current" if current else "")
        for key, name, city, begin, end, current in rows
    ]
    console.table(("customer_id", "name", "city", "valid_from", "valid_to", ""), shown)
    print()


def parquet_files(folder: Path) -> None:
    """The data files of a folder, and the rows of each."""
    import pyarrow.parquet as parquet

    files = sorted(path for path in folder.rglob("*.parquet") if not any(part[0] == "_" for part in path.parts))
    rows = [(path.parent.name, parquet.ParquetFile(path).metadata.num_rows) for path in files]
    console.table(("part of lake/reports/order_report", "rows"), rows)
    print()


def select(query: str) -> list[tuple[Any, ...]]:
    """Rows of the SQLite database."""
    db = sqlite3.connect(Path(os.environ["SHOP_OUT"]) / "shop.db")
    try:
        return db.execute(query).fetchall()
    finally:
        db.close()


def short(value: Any) -> Any:
    """Times to the minute; everything else as it is."""
    is_instant = isinstance(value, str) and len(value) == 27 and value.endswith("Z")
    return value[:16].replace("T", " ") if is_instant else value


def painted(text: str, code: str) -> str:
    """Colour where somebody looks and nobody forbids it."""
    return f"\x1b[{code}m{text}\x1b[0m" if console.has_color(sys.stdout) else text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
