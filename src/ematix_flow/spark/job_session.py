"""A session per job in a process that runs many: the same Java, nothing of what the job before left in it."""

from __future__ import annotations

from pyspark.sql import SparkSession

from ematix_flow.spark import session


def renew_session() -> None:
    """End what the last job left: queries, cached frames, temporary views, functions and settings of its session.

    Called between two jobs, never while one runs. Nothing happens without a session of ours; one of Spark Connect or of
    the native engine is closed, since opening another is quick there.
    """
    with session._lock:
        own = session._own
        if own is None:
            return
        if own.place != "spark":
            session.close_session()
            return
        for query in own.session.streams.active:
            query.stop()
        own.session.sparkContext.cancelAllJobs()  # an interrupted job goes on in Java otherwise
        own.session.catalog.clearCache()
        own.session = own.session.newSession()
        _make_default(own.session)


def _make_default(fresh: SparkSession) -> None:
    """The session that `SparkSession.builder.getOrCreate()` and `getActiveSession()` give from now on."""
    SparkSession._instantiatedSession = SparkSession._activeSession = fresh
    in_java = SparkSession._get_j_spark_session_class(fresh._jvm)
    in_java.setDefaultSession(fresh._jsparkSession)
    in_java.setActiveSession(fresh._jsparkSession)
