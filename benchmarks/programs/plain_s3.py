"""Parquet to and from a bucket by hand, with the defaults.   plain_s3.py FROM TO"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

source, target = sys.argv[1:]
spark = (
    SparkSession.builder.config("spark.jars", os.environ["S3_JARS"])
    .config("spark.hadoop.fs.s3a.endpoint", os.environ["S3_ENDPOINT"])
    .config("spark.hadoop.fs.s3a.endpoint.region", "us-east-1")
    .config("spark.hadoop.fs.s3a.path.style.access", "true")
    .config("spark.hadoop.fs.s3a.access.key", os.environ["S3_KEY"])
    .config("spark.hadoop.fs.s3a.secret.key", os.environ["S3_SECRET"])
    .getOrCreate()
)
spark.read.parquet(source).write.mode("overwrite").parquet(target)
