"""`--spark-master` and `--spark-remote`: where this one command moves rows."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import AbstractContextManager

from ematix_flow.config.spark_place import place_told


def add_spark_place(parser: ArgumentParser) -> None:
    """The two options; at most one of them may be given."""
    parser.add_argument(
        "--spark-master",
        metavar="URL",
        help="Spark master instead of the project's: local[4], spark://host:7077, yarn, …",
    )
    parser.add_argument(
        "--spark-remote", metavar="URL", help="Spark Connect server instead of the project's: sc://host:15002"
    )


def spark_place(args: Namespace) -> AbstractContextManager[None]:
    """What the options say, for as long as the block runs."""
    return place_told(args.spark_master, args.spark_remote)
