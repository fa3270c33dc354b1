"""Pushdown, Spark or the native engine, and why. The reason is kept in the plan, printed by `preview` and logged."""

from __future__ import annotations

from collections.abc import Sequence

from ematix_flow.contracts.plans import Route
from ematix_flow.declare.pipeline import Engine, Mover
from ematix_flow.errors import RouteImpossible


def choose_route(
    engine: Engine, obstacles: Sequence[str], *, mover: Mover = "spark", against_native: Sequence[str] = ()
) -> Route:
    """The route for a load.

    Args:
        engine: what the pipeline asks for.
        obstacles: everything that keeps the load from being pushed down, in words.
        mover: what moves rows that are not pushed down, unless the pipeline says so itself.
        against_native: everything that keeps it from the native engine, in words.

    Raises:
        RouteImpossible: the pipeline or the project forces a route that this load cannot take.
    """
    if engine == "spark":
        return Route("spark", "engine='spark'")
    if engine != "native":
        if not obstacles:
            return Route("pushdown", "same database")
        if engine == "pushdown":
            raise RouteImpossible(f"This load cannot be pushed down: {obstacles[0]}.", fix="leave engine= at 'auto'")
        if mover == "spark":
            return Route("spark", obstacles[0])
    if against_native:
        raise RouteImpossible(
            f"This load cannot run on the native engine: {against_native[0]}.",
            fix="engine='spark' on this pipeline, and run it in a process of its own",
        )
    return Route("native", "engine='native'" if engine == "native" else obstacles[0])
