"""A stand-in for Redshift: PostgreSQL for what the two have in common, and three things it does not know.

`COPY … FROM 's3://…' … FORMAT AS PARQUET MANIFEST` reads the manifest and its files from an S3 server and sends the
rows to PostgreSQL; `varbyte` is its `bytea`; the setting for names is no setting here. A backslash in a text escapes,
as it does there. Nothing here tells how Redshift itself would plan, lock or convert.
"""

from __future__ import annotations

import io
import json
import re
from typing import Any

import psycopg

from ematix_flow.backends.redshift import s3_client

COPY = re.compile(
    r"COPY (?P<table>\S+) FROM '(?P<url>s3://[^']+)' IAM_ROLE '(?P<role>[^']+)' FORMAT AS PARQUET MANIFEST"
)


class StandInConnection(psycopg.Connection[Any]):
    """A connection to PostgreSQL that answers to Redshift's words."""

    def execute(self, query: Any, *arguments: Any, **options: Any) -> Any:  # type: ignore[override]
        text = str(query)
        if text.startswith("SET enable_case_sensitive_identifier"):
            super().execute("SET standard_conforming_strings TO off")
            super().execute("SET escape_string_warning TO off")
            return super().execute(
                "CREATE OR REPLACE FUNCTION pg_temp.from_hex(digits text) RETURNS bytea "
                "LANGUAGE sql AS $$ SELECT decode(digits, 'hex') $$"
            )
        found = COPY.fullmatch(text)
        if found:
            return self._copied(found["table"], found["url"])
        text = re.sub(r"\bvarbyte\(\d+\)", "bytea", text).replace("from_hex(", "pg_temp.from_hex(")
        return super().execute(text, *arguments, **options)

    def _copied(self, table: str, url: str) -> Any:
        import pyarrow.parquet as pq

        entries = json.loads(_object(url))["entries"]
        super().execute("SET standard_conforming_strings TO on")  # or the driver would escape bytes twice
        with self.cursor() as cursor, cursor.copy(f"COPY {table} FROM STDIN (FORMAT text)") as copy:
            for entry in entries:
                body = _object(entry["url"])
                assert len(body) == entry["meta"]["content_length"], "COPY refuses a manifest with a wrong length"
                for row in pq.read_table(io.BytesIO(body)).to_pylist():
                    copy.write_row(tuple(row.values()))
        return super().execute("SET standard_conforming_strings TO off")


def _object(url: str) -> bytes:
    bucket, _, key = url.removeprefix("s3://").partition("/")
    body: bytes = s3_client().get_object(Bucket=bucket, Key=key)["Body"].read()
    return body
