"""A source whose SQL is not its own to run: the tables it names are read, and Spark runs it with Python functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from ematix_flow.backends.files_sql import folder_query
from ematix_flow.contracts.backend import Backend, Health, SpeaksSql
from ematix_flow.contracts.left_out import LeftOutFile, left_out_by
from ematix_flow.contracts.plans import Reading, SourceQuery
from ematix_flow.contracts.session import SessionNeeds
from ematix_flow.contracts.shapes import TableRef, TableShape
from ematix_flow.declare.pipeline import Mover, PipelineSpec
from ematix_flow.declare.sql_dialects import SqlDialect, checked_dialect
from ematix_flow.errors import RouteImpossible

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def refuse_native(spec: PipelineSpec, mover: Mover) -> None:
    """Functions in Python are proven on Spark only.

    Raises:
        RouteImpossible: the pipeline would run on the native engine.
    """
    if mover == "native":
        raise RouteImpossible(
            f"Pipeline '{spec.name}' calls Python functions in its SQL, which the native engine does not.",
            fix="engine='spark' on this pipeline, and run it in a process of its own",
        )


class QueriedInSpark(Backend):
    """The tables of another source, and SQL over them that may call the pipeline's functions.

    Every table that the SQL names is read whole, each in a snapshot of its own.
    """

    def __init__(self, source: Backend, spec: PipelineSpec) -> None:
        super().__init__(source.connection)
        self._source, self._spec = source, spec
        self._left_out: tuple[LeftOutFile, ...] = ()
        self.capabilities = source.capabilities  # type: ignore[misc]  # what it can do is what its source can
        self.is_on_this_machine = source.is_on_this_machine

    @property
    def needs(self) -> SessionNeeds:  # type: ignore[override]
        return self._source.needs

    @property
    def left_out(self) -> tuple[LeftOutFile, ...]:
        """Files that the tables were read without."""
        return self._left_out

    @property
    def file_format(self) -> Any:
        """Of the source's files, if it has any."""
        return getattr(self._source, "file_format", None)

    @property
    def spark_dialect(self) -> SqlDialect:
        """What the SQL is written in: the source's own, unless the pipeline names another."""
        if self._spec.dialect is not None:
            return self._spec.dialect
        return checked_dialect(self._source.dialect.name) if isinstance(self._source, SpeaksSql) else "spark"

    def check(self) -> Health:
        return self._source.check()

    def table_ref(self, schema: str, name: str) -> TableRef:
        return self._source.table_ref(schema, name)

    def describe(self, table: TableRef) -> TableShape | None:
        return self._source.describe(table)

    @contextmanager
    def read(self, spark: SparkSession, query: SourceQuery, reading: Reading) -> Iterator[DataFrame]:
        """The rows of the SQL over the tables as they are now."""
        from ematix_flow.spark.functions import SqlFunctions
        from ematix_flow.spark.table_rows import table_rows, whole_table

        assert query.sql is not None
        functions = SqlFunctions(self._spec.udfs, self._spec.aggregate_udfs)
        asked = folder_query(query.sql, reading.dialect, functions.own)
        functions.check(asked.tree, asked.written)
        with ExitStack() as stack:
            for view, ref in asked.views.items():
                wanted = whole_table(self._source, ref, asked.moments.get(view))
                frame = stack.enter_context(table_rows(spark, self._source, wanted))
                self._left_out += left_out_by(self._source)
                frame.createOrReplaceTempView(view)
                stack.callback(spark.catalog.dropTempView, view)
            found = asked.frame(spark, functions.run)
            functions.forget(spark)
            yield found

    def close(self) -> None:
        """Nothing is held here; the source is closed by whoever opened it."""
