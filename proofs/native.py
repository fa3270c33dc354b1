"""The whole contract of every backend that the native engine serves, on the native engine.

    python proofs/native.py [pytest options]

Each backend is tested in a process of its own. What the engine refuses by design is left out by name below, and
tested elsewhere (`tests/spark/test_native.py`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TESTS: dict[str, tuple[str, ...]] = {
    "values": ("tests/spark/test_fitting.py", "tests/spark/test_expressions.py"),
    "PostgreSQL": ("tests/backends/test_postgres.py",),
    "MySQL": ("tests/backends/test_mysql.py",),
    "SQLite": ("tests/backends/test_sqlite.py",),
    "DuckDB": ("tests/backends/test_duckdb.py",),
    "Parquet": (
        "tests/backends/test_files_contract.py::TestFiles",
        # One folder with 16-bit and 64-bit numbers in one column: one error here, one table on Spark.
        "--deselect",
        "tests/backends/test_files_contract.py::TestFiles::test_files_of_different_widths_are_read_back_as_one_table",
    ),
    # Names that need column mapping and types that become wider are refused, before anything happens.
    "Delta": (
        "tests/backends/test_delta.py",
        "tests/backends/test_lake_damage.py",
        "-k",
        "not hostile and not widened and not iceberg",
    ),
    "lives of many keys": ("tests/plan/test_crowds.py", "-k", "not iceberg"),
    "types": (
        "tests/backends/test_type_matrix.py",
        "-k",
        "not CSV and not JSON and not ORC and not Iceberg and not from_one_kind_of_lake",
    ),
}


def main() -> int:
    """Run all of them; the exit code says whether every one held."""
    failed = []
    environment = {**os.environ, "EMATIX_TEST_ENGINE": "native", "EMATIX_PROVE": "1"}
    for name, tests in TESTS.items():
        sys.stderr.write(f"{name}\n")
        command = [sys.executable, "-m", "pytest", "-q", "-n0", *tests, *sys.argv[1:]]
        if subprocess.run(command, cwd=ROOT, env=environment).returncode:
            failed.append(name)
    sys.stderr.write(f"failed: {', '.join(failed)}\n" if failed else "the contract holds on the native engine\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
