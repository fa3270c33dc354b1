"""MariaDB captured without a broker, through Spark, into another database: equal at the end, whoever died."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from ematix_flow import run_streaming_pipeline
from tests.services.mariadb import MariadbServer
from tests.stream.program import keywords, run_and_die


def test_a_mirror_of_mariadb_is_equal_at_the_end(
    mariadb_with_log: MariadbServer, captured_mysql_url: str, tmp_path: Path
) -> None:
    use, file = f"USE {captured_mysql_url.rpartition('/')[2]}", tmp_path / "mirror.db"

    def change(*statements: str) -> list[tuple[Any, ...]]:
        return mariadb_with_log.run(use, *statements)

    given = {
        "name": "mirror_orders",
        "connections": {
            "shop": {"kind": "mysql", "url": captured_mysql_url},
            "copy": {"kind": "sqlite", "path": str(file)},
        },
        "source": "shop",
        "source_query": "orders",
        "targets": [{"connection": "copy", "table": ["main", "orders"], "primary_key": ["id"]}],
        "cdc": {"envelope": "debezium"},
        "once": True,
    }

    def is_equal() -> bool:
        with sqlite3.connect(file) as db:
            copied = db.execute("SELECT id, item, n FROM orders ORDER BY id").fetchall()
        return copied == [tuple(row) for row in change("SELECT id, item, n FROM orders ORDER BY id")]

    change("CREATE TABLE orders (id int PRIMARY KEY, item varchar(20), n int)")
    change("INSERT INTO orders SELECT seq, 'old', seq FROM seq_1_to_50")
    with sqlite3.connect(file) as db:
        db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, n INTEGER)")
    run_and_die(given, "batch-applied")
    change("UPDATE orders SET n = n + 1 WHERE id > 10", "UPDATE orders SET id = id + 1000 WHERE id > 40")
    change("DELETE FROM orders WHERE id < 5", "INSERT INTO orders VALUES (1, 'new', 1)")
    run_streaming_pipeline(**keywords(given))
    assert is_equal()
    change("TRUNCATE orders", "INSERT INTO orders VALUES (1, 'only', 1)")
    run_streaming_pipeline(**keywords(given))
    assert is_equal()
