"""Lake tables with something wrong in their folder: a clear error that names it, and a target that stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ematix_flow.connections import Connection, DeltaLocalConnection, IcebergConnection, SQLiteConnection
from ematix_flow.errors import FlowError, InvalidSource
from ematix_flow.testing.bench import Bench
from ematix_flow.testing.endpoints import SqliteEndpoint
from ematix_flow.testing.registry import isolated_registry
from ematix_flow.types import BigInt
from tests.backends.lake_contract import ReadBySpark

KINDS: dict[str, Callable[[Path], Connection]] = {
    "delta": lambda place: DeltaLocalConnection(name="lake", path=str(place)),
    "iceberg": lambda place: IcebergConnection(name="lake", warehouse=str(place)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_wrong_in_a_table_is_told_and_leaves_the_target(kind: str, tmp_project: Path) -> None:
    place = tmp_project / "lake"
    lake = ReadBySpark(KINDS[kind](place), schema="analytics")
    till = SqliteEndpoint(SQLiteConnection(name="till", path=str(tmp_project / "till.db")), "main")
    into, out_of = Bench(lake, till), Bench(till, lake)
    with isolated_registry():
        users = into.table("users", id=BigInt)
        into.load(users, [(1,), (2,)], route="spark", mode="append")
        copies = out_of.table("copies", id=BigInt)

        def copied(mode: str = "truncate") -> None:
            out_of.pipeline(copies, route="spark", mode=mode, source_table="analytics.users").sync()

        copied()
        assert out_of.rows(copies) == [(1,), (2,)]
        # Only the rows' own files: logs and their checkpoints are something else.
        (file,) = [path for path in (place / "analytics" / "users").rglob("*.parquet") if "_log" not in str(path)]
        whole = file.read_bytes()
        for data in (whole[: len(whole) // 2], b"no parquet at all", None):
            file.unlink() if data is None else file.write_bytes(data)
            with pytest.raises(InvalidSource) as caught:
                copied()
            assert file.name in str(caught.value) and caught.value.fix, str(caught.value)
            assert out_of.rows(copies) == [(1,), (2,)]
        file.write_bytes(whole)
        copied()
        (place / "analytics" / "plain").mkdir()
        (place / "analytics" / "plain" / "a.parquet").write_bytes(whole)
        with pytest.raises(FlowError, match=r"'analytics\.plain' does not exist"):
            out_of.pipeline(copies, route="spark", mode="append", source_table="analytics.plain").sync()
