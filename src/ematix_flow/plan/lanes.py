"""The fast lanes of a load: which rows may skip the usual way of landing and being inserted, and why."""

from __future__ import annotations

from ematix_flow.contracts.plans import DdlPlan, Lane, Route, Statement, WatermarkRule
from ematix_flow.contracts.shapes import TableShape
from ematix_flow.errors import listed
from ematix_flow.plan.physical import physical_columns, stamps
from ematix_flow.plan.strategies import Load, insert_all


def choose_lane(
    load: Load,
    live: TableShape | None,
    ddl: DdlPlan,
    route: Route,
    landing_sql: str | None,
    watermark: WatermarkRule | None,
) -> Lane:
    """How the landed rows of this load reach the target."""
    if load.retracts is not None:
        return Lane(reason="some of the rows are taken back")
    if load.target.mode == "truncate" or (ddl.action == "create" and not load.target.is_versioned):
        against = _against_swapping(load, live, ddl, route)
        if against is not None:
            return Lane(reason=against)
        values = dict(load.stamp_values())
        return Lane(
            "swap",
            "the landed table becomes the target" if live is None else "the landed table takes the target's place",
            columns=load.columns,
            constants=tuple((column, values[column.name]) for column in stamps(load.target)),
        )
    if load.target.mode == "append" and landing_sql is not None:
        against = _against_straight(load, ddl, watermark)
        if against is not None:
            return Lane(reason=against)
        return Lane("straight", "rows go from the query into the target", statement=_straight(load, landing_sql))
    return Lane()


def _against_swapping(load: Load, live: TableShape | None, ddl: DdlPlan, route: Route) -> str | None:
    """What stands against putting the landed table in the target's place; None when nothing does."""
    dialect = load.dialect
    if not dialect.swaps_tables:
        return f"{dialect.name} has no swapping of tables in a transaction"
    if route.engine != "pushdown":
        converted = [column.name for column in load.columns if not dialect.lands_as_declared(column.type)]
        if converted:
            return f"{listed(converted)} must be converted on the way in"
    if live is None:
        return None
    if ddl.action != "match" or ddl.differences:
        return "the table is not just as it is declared"
    if [column.name for column in live.columns] != [column.name for column in physical_columns(load.target)]:
        return "the table has its columns in another order"
    if any(column.has_default for column in live.columns):
        return "the table has columns with defaults"
    return f"the table has {', '.join(live.bound_by)}" if live.bound_by else None


def _against_straight(load: Load, ddl: DdlPlan, watermark: WatermarkRule | None) -> str | None:
    """What stands against inserting unseen rows: then they are pinned and looked at first."""
    if watermark is not None:
        return "the new rows are looked at for the watermark"
    if not load.dialect.enforces_lengths:
        return f"{load.dialect.name} does not check lengths itself"
    if ddl.differences or ddl.missing_columns:
        return "the table is not just as it is declared"
    return None


def _straight(load: Load, landing_sql: str) -> Statement:
    usual = insert_all(load, f"({landing_sql})")
    return Statement(usual.sql, counts=usual.counts, why="insert the rows of the query")
