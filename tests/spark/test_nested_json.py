"""Nested values as JSON: what a column of a database gets of lists, structs and maps."""

from __future__ import annotations

import json

from pyspark.sql import SparkSession, functions as F

from ematix_flow.spark.nested_json import json_text


def test_json_says_every_value_in_words_that_json_has(spark: SparkSession) -> None:
    frame = spark.sql(
        """
        SELECT array(
            named_struct('n', 9007199254740993, 'x', double('NaN'), 'y', 0.5D, 'b', X'00FF', 't', 'é"',
                         'at', timestamp'2026-03-01 06:00:00.123456Z', 'day', date'2026-03-01',
                         'none', CAST(NULL AS int),
                         'm', map('k', float('inf')), 'd', 1.250),
            NULL
        ) AS v
        """
    )
    [text] = frame.select(json_text(F.col("v"), frame.schema["v"].dataType)).collect()[0]
    assert json.loads(text) == [
        {
            "n": 9007199254740993,
            "x": None,
            "y": 0.5,
            "b": "00ff",
            "t": 'é"',
            "at": "2026-03-01T06:00:00.123456Z",
            "day": "2026-03-01",
            "none": None,
            "m": {"k": None},
            "d": 1.25,
        },
        None,
    ]
