"""Lake tables as sources of streams: the rows that commits append, in their order.

A commit that changes or deletes rows says something that a stream of rows cannot: the stream stops there, or passes it
over where the connection says `stream_changes = "skip"`. Positions are versions and snapshots, so a stream without a
checkpoint goes on where its targets are, as long as these hold whole commits.
"""

from __future__ import annotations

import json
import logging
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal

from ematix_flow.backends.lake import LakeBackend
from ematix_flow.contracts.session import SessionNeeds
from ematix_flow.contracts.shapes import TableRef
from ematix_flow.contracts.streams import Lag, StreamReading
from ematix_flow.errors import InvalidDeclaration, InvalidSource, StateIncompatible

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

BYTES_PER_ROW = 256
"""What a row is taken to weigh where Spark bounds a batch in bytes."""

LATEST = "latest"
_METADATA = re.compile(r"v(\d+)\.metadata\.json")


class LakeStreams(LakeBackend):
    """A lake that can be read as a stream; each kind of table says how its positions are written."""

    gives_messages = False

    @property
    def stream_needs(self) -> SessionNeeds:
        """What reading the tables in batches needs."""
        return self.needs

    @property
    def skips_changes(self) -> bool:
        """Whether commits that change or delete rows are passed over."""
        return getattr(self.connection, "stream_changes", "fail") == "skip"

    @abstractmethod
    def stream_of(self, spark: SparkSession, table: TableRef, reading: StreamReading) -> DataFrame:
        """The endless rows of a table that is there."""

    @abstractmethod
    def place_at(self, table: TableRef, when: datetime) -> Any:
        """The first commit at or after a moment; `LATEST` when there is none."""

    def check_stream(self, query: str) -> None:
        """Refuse a table that is not there."""
        table = self._named(query)
        with self.store.explained():
            if not self.exists(table):
                raise InvalidSource(
                    f"The {self.system} table '{table}' does not exist in '{self.connection.name}'.",
                    fix="check the name (schema.table) and the path of the connection; a stream needs a table to read",
                )

    def identity(self, query: str) -> str | None:
        """The id that the table was made with; another one of its name has another."""
        with self.store.explained():
            return self.id_of(self._named(query))

    @abstractmethod
    def id_of(self, table: TableRef) -> str | None:
        """The id of a table that is there; None where it cannot be told."""

    def first_position(self, query: str) -> Any:
        """All rows of the table, then what is appended."""
        return None

    def read_stream(self, spark: SparkSession, reading: StreamReading) -> DataFrame:
        """Appended rows, commit by commit."""
        with self.store.explained():
            self.prepare(spark)
            return self.stream_of(spark, self._named(reading.query), reading)

    def position(self, offset: str) -> Any:
        """Spark keeps the source's own words."""
        return json.loads(offset)

    def position_at(self, query: str, when: datetime | Literal["earliest", "latest"]) -> Any:
        """The beginning, what is appended from now on, or the first commit that is not older than a moment."""
        table = self._named(query)
        if not isinstance(when, datetime):
            return {"begins": when}
        moment = when if when.tzinfo else when.replace(tzinfo=timezone.utc)
        return self.place_at(table, moment)

    @abstractmethod
    def position_given(self, query: str, given: Any) -> Any:
        """A position that somebody wrote down, checked."""

    def applied(self, query: str, end: Any) -> None:
        """Nobody waits for it: commits stay where they are."""

    def lag(self, query: str, end: Any) -> Sequence[Lag]:
        """Not told: versions are no rows."""
        return ()

    def _lost(self, query: str, why: str) -> StateIncompatible:
        return StateIncompatible(
            f"The stream of '{query}' has no checkpoint, and cannot go on where its targets are: {why}.",
            fix="decide where it begins: flow state reset NAME --from earliest|latest",
        )


class DeltaStreams(LakeStreams):
    """Delta tables: a position is a version, `{"version": 12}`, or Spark's own line for one that is read in part."""

    @abstractmethod
    def _path(self, table: TableRef) -> str: ...

    @abstractmethod
    def _log(self, table: TableRef) -> str: ...

    @abstractmethod
    def _commits(self, table: TableRef) -> list[int]: ...

    def stream_of(self, spark: SparkSession, table: TableRef, reading: StreamReading) -> DataFrame:
        """Spark's own source for Delta tables."""
        options = {
            "skipChangeCommits": str(self.skips_changes).lower(),
            "failOnDataLoss": str(not reading.tolerates_gaps).lower(),
        }
        if reading.max_rows is not None:
            options["maxBytesPerTrigger"] = str(reading.max_rows * BYTES_PER_ROW)
        version = self._begins_with(table, reading) if reading.begins else None
        if version is not None:
            options["startingVersion"] = str(version)
        return spark.readStream.format("delta").options(**options).load(self._path(table))

    def _begins_with(self, table: TableRef, reading: StreamReading) -> int | str | None:
        start: Mapping[str, Any] | None = reading.start
        if start is None or start.get("begins") == "earliest":
            return None
        if start.get("begins") == LATEST:
            return LATEST
        read, now = start.get("table", start.get("reservoirId")), self.id_of(table)
        if read is not None and now is not None and read != now:
            raise self._lost(reading.query, "the table was deleted and made anew since")
        if start.get("isStartingVersion") or start.get("index", -1) >= 0:
            raise self._lost(reading.query, "they hold a part of a commit")
        version = int(start["version"] if "version" in start else start["reservoirVersion"])
        known = self._commits(table)
        if version > max(known):
            # Spark finds no such version, and `latest` could pass over a commit that comes in this moment.
            raise self._lost(reading.query, f"nothing was committed since version {max(known)}; start it again then")
        if version < min(known):
            raise self._lost(reading.query, f"version {version} is no longer in the table's log")
        return version

    def position(self, offset: str) -> Any:
        """`reservoirVersion` is the next version, when nothing of it was read yet."""
        line = json.loads(offset)
        if line["index"] < 0 and not line["isStartingVersion"]:
            return {"version": line["reservoirVersion"], "table": line["reservoirId"]}
        return line

    def id_of(self, table: TableRef) -> str | None:
        """What the first version says, as long as the log has it; a table that was made anew has one again."""
        if 0 not in self._commits(table):
            return None
        with self.store.open(f"{self._log(table)}/{0:020d}.json") as file:
            for line in file:
                made = json.loads(line).get("metaData")
                if made:
                    return str(made["id"])
        return None

    def place_left(self, query: str, end: Any) -> Any:
        """The first version that the log still has, when the next one is older."""
        if end.get("isStartingVersion"):
            return None  # the rest of the table as it was then; Spark says if that is gone
        known, following = self._commits(self._named(query)), int(end.get("version", end.get("reservoirVersion")))
        return {"version": min(known)} if following < min(known) else None

    def place_at(self, table: TableRef, when: datetime) -> Any:
        moment = int(when.timestamp() * 1000)
        for version in sorted(self._commits(table)):
            if self._committed_ms(table, version) >= moment:
                return {"version": version}
        return {"begins": LATEST}

    def _committed_ms(self, table: TableRef, version: int) -> int:
        with self.store.open(f"{self._log(table)}/{version:020d}.json") as file:
            for line in file.read().splitlines():
                told = json.loads(line).get("commitInfo")
                if told:
                    return int(told.get("inCommitTimestamp") or told["timestamp"])
        return 0

    def position_given(self, query: str, given: Any) -> Any:
        """A version: `{"version": 12}`.

        Raises:
            InvalidDeclaration: (a ValueError) it is something else, or the table has no such version.
        """
        version = given.get("version") if isinstance(given, Mapping) else None
        if type(version) is not int:
            raise InvalidDeclaration(f"This is no position in '{query}'.", fix='give a version: {"version": 12}')
        self.check_stream(query)
        known = self._commits(self._named(query))
        if not min(known) <= version <= max(known):
            raise InvalidDeclaration(f"'{query}' has versions {min(known)} to {max(known)}, not {version}.")
        return {"version": version}


class IcebergStreams(LakeStreams):
    """Iceberg tables: a position is a snapshot and how many of its files were read, in Iceberg's own words."""

    def stream_of(self, spark: SparkSession, table: TableRef, reading: StreamReading) -> DataFrame:
        """Spark's source for Iceberg tables; it can be told to begin at a time, and at nothing else."""
        skipped = str(self.skips_changes).lower()
        options = {"streaming-skip-delete-snapshots": skipped, "streaming-skip-overwrite-snapshots": skipped}
        if reading.max_rows is not None:
            options["streaming-max-rows-per-micro-batch"] = str(reading.max_rows)
        moment = self._begins_at(spark, table, reading) if reading.begins else None
        if moment is not None:
            options["stream-from-timestamp"] = str(moment)
        return spark.readStream.format("iceberg").options(**options).table(self.name_of(table))

    def _begins_at(self, spark: SparkSession, table: TableRef, reading: StreamReading) -> int | None:
        line = self._line(spark, table)
        start: Mapping[str, Any] | None = reading.start
        if start is None or start.get("begins") == "earliest":
            self._require_whole(reading.query, line)
            return None
        if start.get("begins") == LATEST:
            return int(line[-1]["ms"]) + 1 if line else None
        if "ms" in start:
            return int(start["ms"])
        places = [place for place, one in enumerate(line) if one["id"] == start["snapshot_id"]]
        if not places:
            raise self._lost(reading.query, "the snapshot they end with is no longer there")
        held, later = line[places[0]], line[places[0] + 1 :]
        if start["position"] < held["files"]:
            raise self._lost(reading.query, "they hold a part of a snapshot")
        if any(one["ms"] <= held["ms"] for one in later):
            raise self._lost(reading.query, "the times of its snapshots do not say their order")
        return int(held["ms"]) + 1

    def _line(self, spark: SparkSession, table: TableRef) -> list[dict[str, Any]]:
        """The snapshots that led to the newest one, the oldest first."""
        name = self.name_of(table)
        newest = spark.sql(f"SELECT snapshot_id FROM {name}.refs WHERE name = 'main'").collect()
        found = spark.sql(
            f"SELECT snapshot_id, parent_id, unix_millis(committed_at), summary['added-data-files'], "
            f"summary['added-records'], summary['total-records'] FROM {name}.snapshots"
        ).collect()
        by_id = {row[0]: row for row in found}
        line: list[dict[str, Any]] = []
        at = by_id.get(newest[0][0]) if newest else None
        while at is not None:
            added, total = int(at[4] or 0), int(at[5] or at[4] or 0)
            line.append({"id": at[0], "ms": at[2], "files": int(at[3] or 0), "is_first": total <= added})
            at = by_id.get(at[1])
        return line[::-1]

    def _require_whole(self, query: str, line: Sequence[Mapping[str, Any]]) -> None:
        """Refuse to begin with a table whose first snapshots have expired: their rows would not be seen."""
        if line and not line[0]["is_first"]:
            raise StateIncompatible(
                f"'{query}' has rows from snapshots that have expired, and a stream sees only what snapshots add.",
                fix="load the table once in a batch pipeline, and begin behind it: flow state reset NAME --from latest",
            )

    def place_left(self, query: str, end: Any) -> Any:
        """The oldest snapshot that is left, when the one that a position is in has expired."""
        if end["snapshot_id"] < 0:
            return None  # the table was empty
        table = self._named(query)
        if getattr(self.connection, "catalog", "path") == "path":
            file = self._newest_metadata(table)
            known = {one["snapshot-id"]: one["timestamp-ms"] for one in (file or {}).get("snapshots", ())}
        else:
            spark = self.spark()
            self.prepare(spark)
            known = {one["id"]: one["ms"] for one in self._line(spark, table)}
        return {"ms": min(known.values())} if known and end["snapshot_id"] not in known else None

    def id_of(self, table: TableRef) -> str | None:
        """What Iceberg calls its UUID: in a folder the newest file of the table says it, elsewhere the catalog."""
        if getattr(self.connection, "catalog", "path") != "path":
            return self._told_by_catalog(table)
        told = (self._newest_metadata(table) or {}).get("table-uuid")
        return None if told is None else str(told)

    def _newest_metadata(self, table: TableRef) -> Mapping[str, Any] | None:
        folder = f"{self.folder_of(table)}/metadata"
        versions = [int(found[1]) for name in self.store.children(folder) if (found := _METADATA.fullmatch(name))]
        found = self.store.read_json(f"{folder}/v{max(versions)}.metadata.json") if versions else None
        return found if isinstance(found, Mapping) else None

    def _told_by_catalog(self, table: TableRef) -> str | None:
        spark = self.spark()
        self.prepare(spark)
        try:
            spark3 = spark._jvm.org.apache.iceberg.spark.Spark3Util  # type: ignore[union-attr]
            return str(spark3.loadIcebergTable(spark._jsparkSession, self.name_of(table)).uuid())
        except Exception as exc:  # a stream that runs needs no catalog for a moment; the next look will tell
            log.debug("the id of '%s' is not known: %s", table, type(exc).__name__)
            return None

    def place_at(self, table: TableRef, when: datetime) -> Any:
        return {"ms": int(when.timestamp() * 1000)}

    def position_given(self, query: str, given: Any) -> Any:
        """A moment in milliseconds: `{"ms": 1767225600000}`.

        Raises:
            InvalidDeclaration: (a ValueError) it is something else.
        """
        if not isinstance(given, Mapping) or type(given.get("ms")) is not int:
            raise InvalidDeclaration(f"This is no position in '{query}'.", fix='give a moment: {"ms": 1767225600000}')
        return {"ms": given["ms"]}
