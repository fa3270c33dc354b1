"""Pushdown or Spark, and why. The reason is kept in the plan, printed by `preview` and stored in the run log."""

from __future__ import annotations

from collections.abc import Sequence

from ematix_flow.contracts.plans import Route
from ematix_flow.declare.pipeline import Engine
from ematix_flow.errors import RouteImpossible


def choose_route(engine: Engine, obstacles: Sequence[str]) -> Route:
    """The route for a load. `obstacles` says, in words, everything that keeps it from being pushed down.

    Raises:
        RouteImpossible: the pipeline forces a route that this load cannot take.
    """
    if engine == "native":
        raise RouteImpossible("engine='native' is not part of this version.", fix="leave engine= at 'auto'")
    if engine == "spark":
        return Route("spark", "engine='spark'")
    if not obstacles:
        return Route("pushdown", "same database")
    if engine == "pushdown":
        raise RouteImpossible(f"This load cannot be pushed down: {obstacles[0]}.", fix="leave engine= at 'auto'")
    return Route("spark", obstacles[0])
