"""One session of `benchmarks/tpch.py`: `spark` and `native` are ours, `plain` is PySpark as it comes.

Questions and answers are lines of JSON.
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any


def opened(kind: str) -> Any:
    if kind != "plain":
        from ematix_flow.contracts.session import SessionNeeds, SparkSettings
        from ematix_flow.spark.session import open_session

        return open_session(SessionNeeds(), SparkSettings(engine="native" if kind == "native" else "spark"))
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()


def plain_value(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    return value.isoformat() if isinstance(value, datetime.date) else value


def made_view(frame: Any, name: str, kind: str) -> None:
    """Name a folder for the queries; ours as its pipelines over files do it."""
    if kind == "plain":
        frame.createOrReplaceTempView(name)
        return
    from ematix_flow.backends.files_native import as_view

    as_view(frame, name)


def main() -> None:
    from ematix_flow.backends.translation.spark_sql import parsed_query, spark_query
    from ematix_flow.backends.translation.text import UserSql

    kind, data = sys.argv[1], Path(sys.argv[2])
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever else is printed is not an answer
    spark = opened(kind)
    schemas = {}
    for folder in sorted(data.iterdir()):
        frame = spark.read.parquet(str(folder))
        made_view(frame, folder.name, kind)
        schemas[folder.name] = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
    texts: dict[int, str] = {}
    for line in sys.stdin:
        question = json.loads(line)
        if "texts" in question:
            for number, text in question["texts"].items():
                written = UserSql(text, "duckdb")
                texts[int(number)] = spark_query(parsed_query(written), written, schemas)
            answer: dict[str, Any] = {"ready": True}
        else:
            began = time.perf_counter()
            rows = spark.sql(texts[question["run"]]).collect()
            seconds = time.perf_counter() - began
            answer = {"seconds": seconds, "rows": [[plain_value(value) for value in row] for row in rows]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    spark.stop()


if __name__ == "__main__":
    main()
