"""The history: from when until when a parcel was where."""

from __future__ import annotations

import pipelines  # noqa: F401 - knows the connections

from ematix_flow import connect

HISTORY = """
    SELECT parcel, place, valid_from::DATE, coalesce(CAST(valid_to::DATE AS VARCHAR), 'now')
    FROM parcels.whereabouts ORDER BY parcel, valid_from
"""
with connect("analysis") as db:
    for parcel, place, begin, end in db.query(HISTORY)["rows"]:
        print(f"{parcel}  {place:<8}{begin} until {end}")
