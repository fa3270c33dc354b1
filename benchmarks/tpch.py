"""The 22 queries of TPC-H: our session beside a PySpark session with its defaults, nothing tuned by the user.

    python benchmarks/tpch.py                    scale factor 1, every query warm, best of 3
    python benchmarks/tpch.py --scale 0.1        smaller
    python benchmarks/tpch.py --only 1 9 18      some of them
    python benchmarks/tpch.py --engine native    the native engine instead of Spark

The texts in `benchmarks/tpch/` are written for DuckDB and PostgreSQL alike; they are translated once, and both sessions
run the same Spark SQL over the same Parquet files (made by `tpcgen-cli`). The two take turns query by query, so that a
busy machine slows both; their answers are compared.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.watched import Peak

TEXTS = Path(__file__).parent / "tpch"
PROGRAM = Path(__file__).parent / "programs" / "tpch_session.py"
TABLES = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")
QUERIES = tuple(range(1, 23))
WANTED: Mapping[str, tuple[float, float]] = {"spark": (1.4, 0.9), "native": (8.0, 0.9)}
"""By engine: how many times faster than PySpark's defaults in the geometric mean, and the slowest query at least."""


def query(number: int, scale: float) -> str:
    """The text of one query. One of them has a share in it that depends on the scale."""
    text = (TEXTS / f"q{number:02d}.sql").read_text(encoding="utf-8")
    return text.replace(":share", f"{0.0001 / scale:.10f}".rstrip("0"))


def make_data(folder: Path, scale: float, *, suite: str = "tpch", parts: int = 2) -> Path:
    """A folder of Parquet files per table; what is there is left alone. `suite` is `tpch` or `tpcds`.

    Raises:
        RuntimeError: `tpcgen-cli` is not installed, or failed.
    """
    if folder.exists():
        return folder
    beside = Path(sysconfig.get_path("scripts")) / "tpcgen-cli"
    program = str(beside) if beside.exists() else shutil.which("tpcgen-cli")
    if program is None:
        raise RuntimeError('The rows are made by tpcgen-cli: pip install "ematix-flow[dev]"')
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-") as part:
        made = subprocess.run(
            [program, suite, "parquet", "-s", f"{scale:g}", f"--parts={parts}", "-o", f"{part}/rows"],
            capture_output=True,
            text=True,
        )
        if made.returncode:
            raise RuntimeError(f"tpcgen-cli failed: {made.stderr.strip()[-300:]}")
        Path(part, "rows").rename(folder)
    return folder


def differences(mine: list[tuple[Any, ...]], theirs: list[tuple[Any, ...]], *, places: float = 1e-9) -> list[str]:
    """Where two answers differ, row by row; numbers may differ by a relative `places`, everything else not at all."""
    if len(mine) != len(theirs):
        return [f"{len(mine)} rows and {len(theirs)} rows"]
    found = []
    for number, (left, right) in enumerate(zip(mine, theirs, strict=True), start=1):
        if len(left) != len(right) or not all(is_same(a, b, places) for a, b in zip(left, right, strict=True)):
            found.append(f"row {number}: {left} and {right}")
    return found


def is_same(left: Any, right: Any, places: float) -> bool:
    """Whether two values are the same, numbers within a relative distance."""
    numbers = (int, float, Decimal)
    if isinstance(left, numbers) and isinstance(right, numbers) and not isinstance(left, bool):
        return left == right or math.isclose(float(left), float(right), rel_tol=places, abs_tol=places)
    return bool(left == right)


class Session:
    """One of the two sessions, in a process of its own that answers queries by number."""

    def __init__(self, kind: str, data: Path, texts: Mapping[int, str]) -> None:
        self.kind = kind
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed with the session
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), kind, str(data)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, "EMATIX_FLOW_APPCDS": "use"},
        )
        self.peak = Peak(self.process.pid)
        self.peak.start()
        self._ask({"texts": {str(number): text for number, text in texts.items()}})

    def run(self, number: int) -> tuple[float, list[list[Any]]]:
        """Seconds and rows of one run of a query."""
        answer = self._ask({"run": number})
        return answer["seconds"], answer["rows"]

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(60)
        self.process.stdout.close()
        self.peak.stop()
        self.log.close()

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            self.process.wait(60)
            self.log.seek(0)
            raise SystemExit(f"the session '{self.kind}' ended: {self.log.read()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def measure(data: Path, scale: float, numbers: Iterable[int], runs: int, engine: str = "spark") -> dict[str, Any]:
    """Run the queries in both sessions in turn; seconds by query, and what the sessions held in memory."""
    texts = {number: query(number, scale) for number in numbers}
    sessions = [Session(kind, data, texts) for kind in (engine, "plain")]
    seconds: dict[str, dict[int, float]] = {session.kind: {} for session in sessions}
    try:
        for number in texts:
            answers = []
            for session in sessions:
                answers.append(session.run(number)[1])  # warm
            different = differences([tuple(row) for row in answers[0]], [tuple(row) for row in answers[1]])
            if different:
                raise SystemExit(f"query {number}: the sessions disagree: {different[0]}")
            for _ in range(runs):
                for session in sessions:
                    took = session.run(number)[0]
                    seconds[session.kind][number] = min(took, seconds[session.kind].get(number, math.inf))
            sys.stderr.write(f"q{number:02d} {seconds[engine][number]:.2f} s, {seconds['plain'][number]:.2f} s\n")
    finally:
        for session in sessions:
            session.close()
    ratios = {number: seconds["plain"][number] / seconds[engine][number] for number in texts}
    return {
        "engine": engine,
        "scale": scale,
        "seconds": seconds,
        "ratios": ratios,
        "total": {kind: sum(found.values()) for kind, found in seconds.items()},
        "geomean": math.exp(sum(map(math.log, ratios.values())) / len(ratios)),
        "slowest": min(ratios.items(), key=lambda item: item[1]),
        "peak_mb": {session.kind: session.peak.mb for session in sessions},
    }


def report(found: Mapping[str, Any]) -> None:
    """The figures as a table, and whether they are what is wanted."""
    engine = found["engine"]
    geomean, slowest_wanted = WANTED[engine]
    for number, ratio in found["ratios"].items():
        ours, plain = (found["seconds"][kind][number] for kind in (engine, "plain"))
        print(f"q{number:02d}   ours {ours:7.2f} s   PySpark defaults {plain:7.2f} s   {ratio:5.2f}×")
    total, peak = found["total"], found["peak_mb"]
    print(f"total ours {total[engine]:7.2f} s   PySpark defaults {total['plain']:7.2f} s")
    print(f"peak  ours {peak[engine]:7.0f} MB  PySpark defaults {peak['plain']:7.0f} MB")
    number, slowest = found["slowest"]
    print(f"geomean {found['geomean']:.2f}× (wanted {geomean}×), slowest q{number:02d} {slowest:.2f}×", end=" ")
    print(f"(wanted {slowest_wanted}×), scale factor {found['scale']:g}")


def main() -> int:
    """Make the rows, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1.0, help="the scale factor of TPC-H")
    parser.add_argument("--only", type=int, nargs="*", default=QUERIES, choices=QUERIES, metavar="N")
    parser.add_argument("--runs", type=int, default=3, help="how often each query is timed; the best counts")
    parser.add_argument("--engine", choices=WANTED, default="spark", help="which engine of ours")
    parser.add_argument("--data", type=Path, help="keep the rows here instead of making them anew")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tpch-") as scratch:
        data = make_data(options.data or Path(scratch, "rows"), options.scale)
        found = measure(data, options.scale, options.only, options.runs, options.engine)
    if options.json:
        print(json.dumps(found))
    else:
        report(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
