"""How an expression that fails says why: text that survives Spark's tasks and a database's error message.

Never holds a row's value.
"""

from __future__ import annotations

import json
from typing import Any

PREFIX = "ematix-flow-error: "
"""What starts such a text; a JSON object follows."""


def unfit(column: str, wanted: str, marker: str | None = None) -> str:
    """A value that does not fit its column's type, or that a marker could not read."""
    facts = {"error": "UnfitValue", "column": column, "type": wanted}
    if marker is not None:
        facts["marker"] = marker
    return PREFIX + json.dumps(facts)


def unfit_because(message: str, **facts: str) -> str:
    """The same with words of its own, and a `column` or a `fix` beside them."""
    return refusal("UnfitValue", message, **facts)


def refusal(error: str, message: str, **facts: str) -> str:
    """An error of ours by the name of its class."""
    return PREFIX + json.dumps({"error": error, "message": message, **facts})


def facts_in(text: str) -> dict[str, Any] | None:
    """What a refusal somewhere in an error's text says; None when there is none.

    >>> facts_in("ERROR: invalid input: " + unfit("a}b", "BigInt") + " at line 3")
    {'error': 'UnfitValue', 'column': 'a}b', 'type': 'BigInt'}
    """
    start = text.find(PREFIX)
    if start < 0:
        return None
    try:
        facts, _ = json.JSONDecoder().raw_decode(text, start + len(PREFIX))
    except ValueError:
        return None
    return facts if isinstance(facts, dict) else None
