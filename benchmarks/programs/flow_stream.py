"""The same stream as a declaration, exactly once.   flow_stream.py postgres|delta TOPIC TABLE"""

from __future__ import annotations

import os
import sys

from ematix_flow import DeltaLocalConnection, KafkaConnection, PostgresConnection, run_streaming_pipeline
from ematix_flow.declare.connection import Connection

target, topic, table = sys.argv[1:]
connection: Connection = PostgresConnection(name="warehouse", url=os.environ["TARGET_URL"])
if target == "delta":
    connection = DeltaLocalConnection(name="lake", path=table)
print(
    run_streaming_pipeline(
        name=f"bench_{target}",
        source=KafkaConnection(name="broker", bootstrap_servers=os.environ["KAFKA"], group_id=f"bench-{target}"),
        source_query=topic,
        target=connection,
        target_table=("bench", "events") if target == "delta" else ("public", table),
        delivery="exactly_once",
        checkpoint=os.environ["CHECKPOINT"],
        once=True,
    )
)
