"""What it costs to look at JSON messages: for fields that nobody knows, and for what cannot be read.

    python benchmarks/json_messages.py                  2 million messages of about 200 bytes
    python benchmarks/json_messages.py --rows 200000    smaller

Messages are read from Parquet files and thrown away, in one session: as they are, taken apart by `from_json` alone, and
as a stream takes them apart, which sets bad ones aside and learns new fields. Prints the best of three runs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from pyspark.sql import DataFrame, functions as F, types as t

from benchmarks.streams import events

SCHEMA = "id BIGINT, user_id BIGINT, kind STRING, amount DOUBLE, at STRING, note STRING"


def by_hand(messages: DataFrame) -> DataFrame:
    """What people write."""
    return messages.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("r")).select("r.*")


def ours(messages: DataFrame) -> DataFrame:
    """What a stream into one lake table does, which the first surprise in a batch stops."""
    from ematix_flow.spark.payloads import BAD, UNKNOWN, JsonCodec

    decoded = JsonCodec(t.StructType.fromDDL(SCHEMA), lambda schema: None).decoded(messages)
    surprise = F.when(F.col(BAD).isNotNull() | F.col(UNKNOWN), F.raise_error(F.lit("a surprise"))).cast("string")
    watched = decoded.observe("messages", F.count(F.lit(1))).withColumn(BAD, surprise)
    return watched.where(F.col(BAD).isNull()).select(*t.StructType.fromDDL(SCHEMA).names)


def seconds(frame: DataFrame) -> float:
    """How long it takes to work out all rows, at best."""
    found = []
    for _ in range(3):
        began = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        found.append(time.perf_counter() - began)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    options = parser.parse_args()
    import pyarrow as pa
    import pyarrow.parquet as pq

    from ematix_flow.contracts.session import SessionNeeds, SparkSettings
    from ematix_flow.spark.session import open_session

    with tempfile.TemporaryDirectory(prefix="ematix-flow-messages-") as folder:
        part, parts = [], 0
        for _, _, event in events(options.rows):
            part.append(json.dumps(event).encode())
            if len(part) == 100_000:
                pq.write_table(pa.table({"value": part}), f"{folder}/{parts}.parquet")
                part, parts = [], parts + 1
        if part:
            pq.write_table(pa.table({"value": part}), f"{folder}/{parts}.parquet")
        messages = open_session(SessionNeeds(), SparkSettings()).read.parquet(folder)
        cases: dict[str, Callable[[DataFrame], DataFrame]] = {
            "read only": lambda frame: frame.select(F.sum(F.length("value"))),
            "from_json by hand": by_hand,
            "as a stream": ours,
        }
        for name, case in cases.items():
            print(f"{name:18} {seconds(case(messages)):6.2f} s", flush=True)


if __name__ == "__main__":
    main()
