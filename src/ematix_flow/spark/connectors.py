"""Whether a session that runs already has the connectors of a plan: jars come before Java starts, or not at all."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, cast

from ematix_flow.backends import jars
from ematix_flow.contracts.session import SessionNeeds
from ematix_flow.errors import MissingJar
from ematix_flow.spark import jvm, remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


def checked_for_jars(session: SparkSession, needs: SessionNeeds) -> SparkSession:
    """The session, told what it can still be told.

    Raises:
        MissingJar: it lacks a connector.
    """
    has_class = remote.has_class if is_connect(session) else jvm.has_class
    families = {name: jars.family(name, session.version) for name in sorted(needs.jars)}
    missing = [name for name, family in families.items() if not has_class(session, family.probe)]
    if missing:
        wanted = jars.jars_for(missing, session.version)
        how = f"spark.jars.packages={','.join(jar.coordinate for jar in wanted)}"
        if any(jar.coordinate.count(":") > 2 for jar in wanted):  # Spark fetches no jar by a classifier
            how = f"the files of `flow jars fetch {' '.join(missing)}` in spark.jars"
        extensions = ",".join(name for family in missing for name in families[family].extensions)
        how += f" and spark.sql.extensions={extensions}" if extensions else ""
        who = "Spark Connect server" if is_connect(session) else "running Spark session"
        raise MissingJar(
            f"The {who} lacks the connectors {', '.join(missing)}, and jars cannot be added to it.",
            tried=["the active session"],
            fix=f"start it with {how}" + ("" if is_connect(session) else ", or stop it and let ematix-flow start one"),
        )
    remote.set_what_can_be_set(session, needs.conf)
    log.debug("The active Spark session is used as it is")
    return session


def require_on_server(session: SparkSession, families: Set[str]) -> None:
    """Make sure that a Spark Connect server has connectors, and tell it the settings that it can be told.

    Raises:
        MissingJar: it lacks one.
    """
    if families:
        checked_for_jars(session, SessionNeeds(jars=frozenset(families)))
        settings = [setting for name in families for setting in jars.family(name, session.version).conf]
        there = cast(Mapping[str, str], session.conf.getAll)
        remote.set_what_can_be_set(session, {key: value for key, value in settings if key not in there})


def is_connect(session: SparkSession) -> bool:
    """Whether a session is a client of Spark Connect, which has no JVM of its own."""
    return type(session).__module__.startswith("pyspark.sql.connect")
