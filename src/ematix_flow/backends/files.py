"""Files as source and target: Parquet, CSV, JSON lines and ORC below one folder, or in one bucket (`files_s3.py`, …).

A table is the folder `<path>/<schema>/<table>`, or a prefix of the user's own. Targets append or replace, exactly once
per logical run: rows are staged by Spark, then published by one rename of the table's manifest (see `files_table.py`),
which also holds the watermark and the applied runs. Readers of ours follow the manifest; a folder we never wrote to is
read as it stands. Keys are not enforced, so `merge` and `scd2` need a Delta table.
"""

from __future__ import annotations

import logging
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timezone
from typing import TYPE_CHECKING, Any, ClassVar, cast

from ematix_flow.backends.files_books import FileBooks
from ematix_flow.backends.files_damage import parted
from ematix_flow.backends.files_frames import Expected, FrameFiles, partition_names
from ematix_flow.backends.files_native import as_view
from ematix_flow.backends.files_options import (
    EXTENSION,
    check_options,
    given_read_options,
    prefix_segments,
    written_layout,
)
from ematix_flow.backends.files_shape import Schema, described, footer_schema, joined, readable
from ematix_flow.backends.files_sql import folder_query, is_prefix
from ematix_flow.backends.files_store import LocalStore, Store
from ematix_flow.backends.files_stream import FileStreams
from ematix_flow.backends.files_table import DataFile, Manifest, TableFolder
from ematix_flow.backends.folder import FolderBackend
from ematix_flow.backends.json_books import file_name
from ematix_flow.backends.locks import digest
from ematix_flow.backends.transport import mark_column, quoted
from ematix_flow.contracts.backend import Capabilities
from ematix_flow.contracts.crashpoints import reached
from ematix_flow.contracts.left_out import LeftOutFile, left_out_words
from ematix_flow.contracts.plans import BatchPlan, OpenedRun, Reading, SettleReport, SourceQuery, Stamp
from ematix_flow.contracts.session import SessionNeeds
from ematix_flow.contracts.shapes import TableRef, TableShape
from ematix_flow.declare.connection import Connection, ObjectStoreLocalConnection
from ematix_flow.declare.connection_base import HoldsFiles
from ematix_flow.declare.fileformats import TYPED_FORMATS as TYPED, FileFormat, format_from_path
from ematix_flow.declare.sql_dialects import SqlDialect
from ematix_flow.declare.target import FileOptions, TargetSpec
from ematix_flow.errors import (
    IncompatibleSchema,
    InvalidPlan,
    InvalidSource,
    listed,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)

FILE_BYTES = 128 * 1024 * 1024
"""How big a file may grow before a load makes a second one."""

SMALL_FILE_BYTES = FILE_BYTES // 8
"""Files of less than this on average are put together: they cost readers more than writing them anew costs once."""


class FilesBackend(FileStreams, FolderBackend):
    """The files below one folder of this machine."""

    connection_type: ClassVar[type[Connection]] = ObjectStoreLocalConnection
    capabilities = Capabilities(modes=frozenset({"append", "truncate"}))
    # Spark's own default is a 96-bit form that other readers take for a time without a zone.
    needs = SessionNeeds(conf={"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"})

    books: FileBooks

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        assert isinstance(connection, HoldsFiles)
        self.file_format = cast(FileFormat, connection.format)
        self.options = FileOptions(
            csv_read_options=given_read_options(connection.csv_read_options),
            json_read_options=given_read_options(connection.json_read_options),
        )
        check_options(self.file_format, self.options)
        self.goes_on_without = connection.on_corrupt_file == "quarantine"
        self.left_out: tuple[LeftOutFile, ...] = ()
        self.books = FileBooks(self.store, self.file_format)

    def open_store(self, connection: Connection) -> Store:
        """Where the files are; another file system overrides this."""
        assert isinstance(connection, ObjectStoreLocalConnection)
        return LocalStore(connection.path)

    # ── every backend ────────────────────────────────────────────────────────────────────────────────────────────────

    def check_target(self, spec: TargetSpec) -> None:
        """Refuse file options that do not fit, before anything runs; for the planner."""
        self.refuse_options(spec, spec.broker.given(), "brokers")
        check_options(self.file_format, spec.files)
        self.check_partitions(spec)
        self.target_ref(spec)

    def target_ref(self, spec: TargetSpec) -> TableRef:
        """Where a target's rows go: its prefix if it has one, else `<schema>/<table>`."""
        if spec.files.prefix is not None:
            return TableRef(None, "/".join(prefix_segments(spec.files.prefix)))
        return self.table_ref(spec.table.schema, spec.table.name)

    def describe(self, table: TableRef) -> TableShape | None:
        """All columns of the live files, where the format says its types; None for text formats and without data."""
        with self.store.explained():
            folder = self._table(table)
            manifest = folder.manifest() if self.store.exists(folder.folder) else None
            schema = self._known_schema(manifest)
            if schema is not None and manifest is not None:
                return described(table, schema, has_rows=bool(manifest.files))
            if self.file_format not in TYPED or not self.store.exists(folder.folder):
                return None
            files = folder.live_files(manifest)
            if not files:
                return None
            found, has_rows = self._footers(folder, files)
            return described(table, found, has_rows=has_rows)

    def _known_schema(self, manifest: Manifest | None) -> Schema | None:
        """What a manifest says of the columns of all its files; nothing for text, whose readers decide."""
        if manifest is None or self.file_format not in TYPED or not readable(manifest.schema):
            return None
        return manifest.schema

    def _footers(self, folder: TableFolder, files: Sequence[DataFile]) -> tuple[Schema, bool]:
        paths = (f"{folder.folder}/{file.path}" for file in files)
        opened = ((self.store.shown_path(path), self.store.open(path)) for path in paths)
        return footer_schema(folder.folder, self.file_format, opened)

    def folder_of(self, table: TableRef) -> str:
        return self._table(table).folder

    def _table(self, ref: TableRef) -> TableFolder:
        if ref.schema is None:
            folder = "/".join(prefix_segments(ref.name))
        else:
            self.table_ref(ref.schema, ref.name)
            folder = f"{ref.schema}/{ref.name}"
        return TableFolder(self.store, folder, self.file_format)

    # ── source ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def read(self, spark: SparkSession, query: SourceQuery, reading: Reading) -> Iterator[DataFrame]:
        """The rows of a table, of a bare prefix, or of Spark SQL over folders.

        `left_out` names the files that are not among them, where the connection allows that.
        """
        expected = Expected.of(reading)
        self.left_out = ()
        with ExitStack() as stack:
            with self.store.explained():
                frames = FrameFiles(spark, self.store, self.file_format, self.options)
                frame = self._query_frame(frames, query, expected, stack, reading.dialect)
            yield frames.decode_bytes(frame, expected)

    def _query_frame(
        self, frames: FrameFiles, query: SourceQuery, expected: Expected, stack: ExitStack, dialect: SqlDialect
    ) -> DataFrame:
        if query.table is not None:
            return self._folder_frame(frames, query.table, expected, stack)
        if query.sql is None:
            raise InvalidSource("Files are read by table, by prefix or by SQL.")
        if is_prefix(query.sql):
            return self._folder_frame(frames, TableRef(None, query.sql.strip()), expected, stack)
        folders = folder_query(query.sql, dialect)
        if folders.moments:
            raise InvalidSource("Folders of files have no versions.", fix="leave out AS OF, or use a lake table")
        for view, ref in folders.views.items():
            as_view(self._folder_frame(frames, ref, Expected(), stack), view)
            stack.callback(frames.spark.catalog.dropTempView, view)
        return folders.frame(frames.spark)

    def _folder_frame(self, frames: FrameFiles, ref: TableRef, expected: Expected, stack: ExitStack) -> DataFrame:
        table = self._table(ref)
        if self.store.is_file(table.folder):
            parent, _, name = table.folder.rpartition("/")
            if format_from_path(name) != self.file_format:
                raise InvalidSource(
                    f"'{name}' does not end like a {self.file_format} file.",
                    where=self.store.shown_path(table.folder),
                    fix="use a connection with the file's own format",
                )
            alone = (DataFile(name, self.store.size(table.folder)),)
            return frames.read(parent or ".", self._sound(parent or ".", alone), expected)
        if not self.store.exists(table.folder):
            raise InvalidSource(
                f"The source '{ref}' does not exist.",
                where=self.store.shown_path(table.folder),
                fix="check the name and the path of the connection; schema.table is the folder schema/table below it",
            )
        stack.enter_context(table.being_read())
        manifest = table.manifest()
        files = table.live_files(manifest)
        if files:
            return frames.read(table.folder, self._sound(table.folder, files), expected, self._known_schema(manifest))
        if manifest is not None and manifest.schema is not None:
            return frames.empty(manifest.schema)
        others = sorted({os.path.splitext(file.path)[1] for file in self.store.visible_files(table.folder)})
        raise InvalidSource(
            f"The source '{ref}' holds no {self.file_format} files.",
            where=self.store.shown_path(table.folder),
            fix=f"it holds files ending in {listed(others)}: use a connection with their format"
            if others
            else "put files there, or check the path of the connection",
        )

    def _sound(self, folder: str, files: tuple[DataFile, ...]) -> tuple[DataFile, ...]:
        """The files to be read: all of them, or with `on_corrupt_file = "quarantine"` those that can be.

        Raises:
            InvalidSource: none of them can be; a load of nothing would look like a source that is empty.
        """
        if not self.goes_on_without:
            return files
        sound, damaged = parted(self.store, folder, files, self.file_format)
        if not sound:
            raise InvalidSource(
                f"Of '{folder}' no file can be read. {left_out_words(damaged)}.",
                where=self.store.shown_path(folder),
                fix="mend or remove them",
            )
        if damaged:
            known = {file.path for file in self.left_out}
            self.left_out += tuple(file for file in damaged if file.path not in known)
            log.warning("%s: %s; left out", self.connection.name, left_out_words(damaged))
        return sound

    # ── target ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def write(
        self, frame: DataFrame, plan: BatchPlan, run: OpenedRun | None, stamp: Stamp, *, dry_run: bool = False
    ) -> SettleReport:
        """Stage the rows, then publish them with watermark and applied run; a repeated logical run does nothing.

        Any error before the manifest is replaced leaves the table as it was. A dry run stages elsewhere and counts.
        """
        missing = [column.name for column in plan.columns if column.name not in frame.columns]
        if missing:
            raise InvalidPlan(f"The rows for {plan.table} lack {listed(missing)}.")
        if dry_run or run is None:
            with tempfile.TemporaryDirectory(prefix="ematix-flow-") as scratch:
                frames = FrameFiles(frame.sparkSession, LocalStore(scratch), self.file_format, plan.target.files)
                _, report, _ = self._stage(frames, frame, plan, "rows")
                return report
        prefix = plan.target.files.prefix
        table = self._table(plan.table if prefix is None else TableRef(None, prefix))
        with self.store.explained():
            if run.applied is not None:
                return SettleReport(rows=0, replayed=True)
            self.books.remember_folder(run, table.folder)
            with table.staging(file_name(run.run_id)) as place:
                frames = FrameFiles(frame.sparkSession, self.store, self.file_format, plan.target.files)
                staged, report, schema = self._stage(frames, frame, plan, f"{place}/rows")
                reached("staged")
                return self._publish(table, staged, report, schema, plan, run, stamp)

    def _stage(
        self, frames: FrameFiles, frame: DataFrame, plan: BatchPlan, place: str
    ) -> tuple[list[tuple[str, DataFile]], SettleReport, dict[str, Any]]:
        """Let Spark write the rows; the staged files with their places, the counts, and the columns written."""
        from pyspark.sql import functions as F

        declared = [column.name for column in plan.columns]
        rows = frames.as_writable(frame, [*declared, *(name for name in frame.columns if name not in declared)])
        partitions = tuple(plan.target.files.partition_by or ())
        # One task per partition value keeps the number of files down; the hint lets Spark split values that are big.
        frames.write(rows.hint("rebalance", *map(quoted, partitions)) if partitions else rows, place)
        files = self._staged_files(frames, place, rows.columns)
        if not files:
            return [], SettleReport(rows=0), rows.schema.jsonValue()
        written = frames.read_typed(place, files, rows.schema)
        size = sum(file.size for file in files)
        wanted = math.ceil(size / FILE_BYTES)
        if not partitions and len(files) >= 2 * wanted and size / len(files) < SMALL_FILE_BYTES:
            # Small files are put together from what is staged; the source is not asked again.
            frames.write(written.coalesce(wanted), f"{place}-joined")
            place = f"{place}-joined"
            files = self._staged_files(frames, place, rows.columns)
            written = frames.read_typed(place, files, rows.schema)
        counts = [F.count(F.lit(1)).alias("rows")]
        if plan.watermark is not None:
            data_type = frame.schema[plan.watermark.column].dataType
            highest = F.max(F.col(quoted(plan.watermark.column)).cast(data_type))
            counts.append(mark_column(highest, plan.watermark.type).alias("mark"))
        found = written.agg(*counts).collect()[0]
        report = SettleReport(
            rows=found["rows"], inserted=found["rows"], watermark=found["mark"] if plan.watermark else None
        )
        staged = [(f"{place}/{file.path}", frames.published(file)) for file in files] if report.rows else []
        return staged, report, rows.schema.jsonValue()

    def _staged_files(self, frames: FrameFiles, place: str, names: Sequence[str]) -> list[DataFile]:
        layout = columns = None
        if self.file_format == "csv":
            layout = written_layout(frames.options)
            columns = tuple(name for name in names if name not in (frames.options.partition_by or ()))
        found = frames.store.visible_files(place)
        return [DataFile(file.path, file.size, layout, columns) for file in found if file.size]

    def _publish(
        self,
        table: TableFolder,
        staged: list[tuple[str, DataFile]],
        report: SettleReport,
        schema: Schema,
        plan: BatchPlan,
        run: OpenedRun,
        stamp: Stamp,
    ) -> SettleReport:
        moves = [
            (place, replace(file, path=self._final_name(file, n, run, stamp))) for n, (place, file) in enumerate(staged)
        ]
        with table.locked():
            before = table.current()
            known = before.pipeline(run.pipeline)
            if run.is_held(known.applied_run(run.logical_run)):
                return SettleReport(rows=0, replayed=True)
            self.books.require_current(run, known.generation)
            replaces = plan.target.mode == "truncate"
            if not replaces and moves:
                self._require_same_partitions(table, before, [file for _, file in moves])
            if not replaces and self.file_format in TYPED:
                schema = joined(self._schema_of(table, before), schema, str(plan.table))
            state = self.books.settled(run, known, report, plan.watermark.column if plan.watermark else None, stamp.now)
            after = replace(
                before,
                files=(*(() if replaces else before.files), *(file for _, file in moves)),
                pipelines={**before.pipelines, run.pipeline: state},
                schema=schema,
            )
            table.publish(moves, after, replace=replaces)
            try:
                table.clear_replaced()
                self.books.after_commit(run, state, stamp.now)
            except OSError as exc:
                # The rows are committed, so the run has succeeded; the next one brings the rest up to date.
                log.warning("'%s' is loaded, but its books could not be brought up to date: %s", run.pipeline, exc)
        return report

    def _require_same_partitions(self, table: TableFolder, before: Manifest, new: Sequence[DataFile]) -> None:
        """Refuse to append files that lie otherwise than those that are there: no reader could take them together."""
        ways = [partition_names(files, table.folder) for files in (before.files, new) if files]
        if ways[0] != ways[-1]:
            there, here = (listed(names) if names else "no column" for names in (ways[0], ways[-1]))
            raise IncompatibleSchema(
                f"The files of '{table.folder}' are partitioned by {there}, and this load by {here}.",
                fix="keep partition_by= as it was, or load with mode='truncate' once",
            )

    def _schema_of(self, table: TableFolder, manifest: Manifest) -> Schema | None:
        """The schema of the files that stay; those which somebody else put there are asked, once."""
        if manifest.schema is not None or not manifest.files:
            return manifest.schema
        return self._footers(table, manifest.files)[0]

    def _final_name(self, file: DataFile, number: int, run: OpenedRun, stamp: Stamp) -> str:
        """Sortable by time; the same run never makes the same name twice, and two runs never share one."""
        moment = stamp.now.astimezone(timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")
        name = f"{moment}-{digest(f'{run.pipeline} {run.load_name}')}-{number:05d}.{EXTENSION[self.file_format]}"
        return "/".join([*file.path.split("/")[:-1], name])
