"""SQL over a batch: what its columns may be called."""

from __future__ import annotations

import pytest

from ematix_flow.errors import InvalidSource
from ematix_flow.spark.stream_sql import StreamSql
from ematix_flow.testing.spark import local_spark


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT id, name AS id FROM source", "two columns named 'id'"),
        ("SELECT id, name AS ID FROM source", "two columns named 'ID', which to SQL is 'id' as well"),
        ("SELECT * FROM source s JOIN tiers t ON t.id = s.id", "two columns named 'id'"),
    ],
)
def test_two_columns_of_one_name_are_refused(sql: str, said: str) -> None:
    rows = local_spark().createDataFrame([(1, "ann")], "id bigint, name string")
    tiers = local_spark().createDataFrame([(1, "gold")], "id bigint, tier string")
    with pytest.raises(InvalidSource, match=said):
        StreamSql(sql, "spark", ["tiers"])(rows, {"tiers": tiers})


def test_one_column_may_stand_twice() -> None:
    rows = local_spark().createDataFrame([(1, "ann")], "id bigint, name string")
    assert StreamSql("SELECT *, id FROM source", "spark")(rows).collect()
