"""The process that Spark's Python workers on this machine are forked from, made ready once for all of them.

Spark starts it by name (`spark.python.daemon.module`). With Spark's own every worker imports pandas and pyarrow anew,
and every task reads the directories of PySpark's archives again and walks over all objects to find garbage: half a
second of processor for a worker, and a tenth of a second for a task, however small.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping

_DAEMON = "spark.python.daemon.module"
_PYTHONPATH = "spark.executorEnv.PYTHONPATH"


def settings(conf: Mapping[str, str]) -> dict[str, str]:
    """What a session on this machine is told of its workers; the user's own settings stay."""
    told: dict[str, str] = {}
    # Functions of the user's modules are found by workers just as they are found here.
    paths = [*_own_paths(), *filter(None, [conf.get(_PYTHONPATH)])]
    if paths:
        told[_PYTHONPATH] = os.pathsep.join(paths)
    # Another Python need not have this file, and macOS ends forks of a process that has used its frameworks.
    if conf["spark.pyspark.python"] == sys.executable and _DAEMON not in conf and sys.platform == "linux":
        told[_DAEMON] = "ematix_flow.spark.worker_daemon"
    return told


def main() -> None:
    """Import what workers need, then fork one whenever Spark asks for it, until Spark closes the line."""
    sys.path[:] = without_archives(sys.path, os.environ.get("SPARK_HOME", ""))
    sys.path_importer_cache.clear()

    import pandas  # noqa: F401
    import pyarrow  # noqa: F401
    import pyspark.sql.conversion
    import pyspark.sql.pandas.serializers
    import pyspark.worker  # noqa: F401
    from pyspark import daemon

    # What is here now stays: the collection after each task need not look at it, and forks go on sharing its memory.
    gc.collect()
    gc.freeze()
    daemon.manager()  # type: ignore[no-untyped-call]


def without_archives(paths: list[str], spark_home: str) -> list[str]:
    """The places to import from, without the archives of a PySpark that is there as a package as well.

    >>> without_archives(["/p/pyspark/python/lib/pyspark.zip", "/p/pyspark/jars/spark-core.jar", "/p"], "/p/pyspark")
    ['/p']
    >>> without_archives(["/opt/spark/python/lib/pyspark.zip", "/p"], "/opt/spark")
    ['/opt/spark/python/lib/pyspark.zip', '/p']
    """
    above, name = os.path.split(spark_home)
    if name != "pyspark" or above not in paths:
        return paths
    return [path for path in paths if not (path.startswith(spark_home + os.sep) and path.endswith((".zip", ".jar")))]


def _own_paths() -> list[str]:
    """Folders this process imports from that a plain start of the same Python does not know."""
    built_in = {os.path.realpath(sys.prefix), os.path.realpath(sys.base_prefix)}
    paths = (os.path.realpath(entry or os.getcwd()) for entry in sys.path)
    return [
        path
        for path in dict.fromkeys(paths)
        if os.path.isdir(path) and not any(path.startswith(root + os.sep) for root in built_in)
    ]


if __name__ == "__main__":
    main()
