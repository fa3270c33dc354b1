"""The dialects in which SQL that runs in Spark may be written: `dialect=` of a pipeline."""

from __future__ import annotations

from typing import Literal, get_args

from ematix_flow.errors import InvalidDeclaration, closest, listed

SqlDialect = Literal[
    "spark",
    "duckdb",
    "postgres",
    "datafusion",
    "redshift",
    "snowflake",
    "bigquery",
    "databricks",
    "trino",
    "mysql",
    "sqlite",
]
SQL_DIALECTS: tuple[str, ...] = get_args(SqlDialect)
_OTHER_NAMES = {"postgresql": "postgres", "pyspark": "spark", "spark_sql": "spark", "presto": "trino"}


def checked_dialect(written: object) -> SqlDialect:
    """The dialect meant by `dialect=`, in any case.

    >>> checked_dialect("DuckDB"), checked_dialect("postgresql")
    ('duckdb', 'postgres')

    Raises:
        InvalidDeclaration: nobody here reads it.
    """
    name = written.strip().lower() if isinstance(written, str) else ""
    name = _OTHER_NAMES.get(name, name)
    if name not in SQL_DIALECTS:
        raise InvalidDeclaration(
            f"dialect must be one of {listed(SQL_DIALECTS)}, not {written!r}.", fix=closest(name, SQL_DIALECTS)
        )
    return name  # type: ignore[return-value]  # checked against SQL_DIALECTS above
