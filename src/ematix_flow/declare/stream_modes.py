"""How the rows of a stream get into a target: which modes a kind of system has, and which options say something there.

A batch of a stream is never all there is. So nothing can be replaced by it, and nothing is missing from it: what a load
in batches does with a whole source is refused here, and not left to the first micro-batch.
"""

from __future__ import annotations

from ematix_flow.declare.connection import Connection
from ematix_flow.declare.connection_base import HoldsFiles
from ematix_flow.declare.table import table_spec
from ematix_flow.declare.target import Target
from ematix_flow.errors import InvalidDeclaration, MissingKeys, listed

BROKERS = ("kafka", "rabbitmq", "pubsub", "kinesis")
WAREHOUSES = ("snowflake", "bigquery", "redshift")

_MODES = ("append", "merge", "scd1", "scd2")
_KEYED = _MODES[1:]
_TAKEN_BY = {
    "keys": _KEYED,
    "update_columns": ("merge", "scd1"),
    "compare_columns": _KEYED,
    "event_timestamp_column": ("scd2",),
}
"""Options of a target that only some modes look at."""

_NOT_FOR_CHANGES = ("update_columns", "event_timestamp_column", "column_map")


def check_whole_source_options(target: Target) -> None:
    """Refuse what needs all rows of a source at once, whatever the system.

    Raises:
        InvalidDeclaration: (a ValueError) names the option.
    """
    if target.mode == "truncate":
        raise InvalidDeclaration(
            "mode='truncate' is not possible in a stream: every batch would replace the ones before.",
            fix="leave out mode=, or use mode='merge' with keys=(…)",
        )
    if target.handle_deletes is not None:
        raise InvalidDeclaration(
            "handle_deletes= is not possible in a stream: a batch cannot tell which keys are gone.",
            fix="leave it out; deletes come through cdc=CDC(…), or with a load in batches",
        )
    if target.ttl is not None:
        raise InvalidDeclaration(
            "ttl= is not possible in a stream: while no messages come, nothing would be closed.",
            fix="leave it out; close old versions with a load in batches, @ematix.pipeline(…, ttl=…)",
        )


def check_mode(target: Target, *, is_cdc: bool, gives_again: bool, has_key: bool) -> None:
    """Refuse a mode that a target's system does not have, and options that its mode does not look at.

    Args:
        target: A fitted target.
        is_cdc: Whether change events are applied to it.
        gives_again: Whether rows come that replace earlier ones, and are merged without a word.
        has_key: Whether the stream itself knows the key of its rows.

    Raises:
        InvalidDeclaration: (a ValueError) the mode, or an option beside it, says nothing there.
        MissingKeys: (a ValueError) rows are to be merged, and nobody says by what.
    """
    kind = target.connection.kind if isinstance(target.connection, Connection) else None
    possible = ("merge", "scd1", "scd2") if is_cdc else _possible(target)
    if target.mode is not None and target.mode not in possible:
        raise InvalidDeclaration(
            f"mode='{target.mode}' is not possible {f'in a stream into {kind}' if not is_cdc else 'with cdc='}.",
            fix=f"leave it out, or use one of {listed(possible)}",
        )
    mode = target.mode or ("merge" if is_cdc or (gives_again and "merge" in possible) else "append")
    for option, modes in _TAKEN_BY.items():
        if getattr(target, option) is not None and mode not in modes:
            wanted = [one for one in modes if one in possible and one != "scd1"]
            raise InvalidDeclaration(
                f"{option}= says nothing with mode='{mode}', which is what this target has.",
                fix=f"use mode={' or '.join(repr(one) for one in wanted)}, or leave out {option}="
                if wanted
                else f"leave out {option}=",
            )
    for option in _NOT_FOR_CHANGES if is_cdc else ():
        if getattr(target, option):
            raise InvalidDeclaration(f"{option}= cannot go with cdc=: a feed says itself what changed.")
    if mode in _KEYED and not (is_cdc or has_key or _key(target)):
        raise MissingKeys(
            f"mode='{mode}' needs keys and none are declared.",
            fix="keys=(…) on the target, or a table class with pk()",
        )


def _possible(target: Target) -> tuple[str, ...]:
    connection = target.connection
    if not isinstance(connection, Connection):
        return _MODES
    if isinstance(connection, HoldsFiles) or connection.kind in BROKERS:
        return ("append",)
    return _MODES[:3] if connection.kind in WAREHOUSES else _MODES


def _key(target: Target) -> tuple[str, ...]:
    """The columns by which rows are the same, where anybody declares them."""
    named = target.keys or target.primary_key
    if named or target.table is None or isinstance(target.table, tuple):
        return tuple(named or ())
    table = table_spec(target.table)
    return table.merge_keys or (table.unique[0] if table.unique else ()) or table.primary_key
