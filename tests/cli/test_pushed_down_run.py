"""A pushed-down `flow run` is quick, and needs neither Java nor pyspark."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

MODULE = """
from ematix_flow import Annotated, BigInt, Text, ematix, pk

@ematix.table(schema="analytics")
class Person:
    id: Annotated[BigInt, pk()]
    name: Text | None

@ematix.pipeline(target=Person, mode="merge")
def load(conn):
    return "SELECT 1::bigint AS id, 'Ada'::text AS name"
"""
# Importing pyspark fails here, so a run that succeeds has not touched it.
BLOCK = "import sys\nsys.modules['pyspark'] = None\nfrom ematix_flow.cli.main import main\nsys.exit(main(sys.argv[1:]))"


@pytest.mark.alone
def test_a_pushed_down_run_takes_less_than_a_second_and_a_half_and_no_java(tmp_project: Path, pg_url: str) -> None:
    (tmp_project / "quick.py").write_text(MODULE)
    env = {**os.environ, "EMATIX_FLOW_DSN": pg_url, "JAVA_HOME": "/nowhere", "PATH": ""}
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", BLOCK, "run", "--module", "quick", "load"], env=env, capture_output=True, text=True
        )
        taken.append(time.perf_counter() - began)
        assert done.returncode == 0, done.stderr
    with psycopg.connect(pg_url) as db:
        assert db.execute("SELECT id, name FROM analytics.person").fetchall() == [(1, "Ada")]
    assert min(taken) < 1.5
