"""What `preview`, `dry_run` and `validate` answer: plain data, ready for JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

TransformKind = Literal["sql", "callable", "transform_ref"]


@dataclass(frozen=True, kw_only=True)
class TransformPlan:
    """One after-load step: its SQL, the name of its function, or the name it refers to."""

    kind: TransformKind
    summary: str

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class TargetPlan:
    """One target's load as it would run.

    Attributes:
        path: `same_db` or `cross_db`; `path_reason` says why.
        engine: what moves the rows, in the word of the route; the documented data has `path` and `path_reason`.
        augmented_columns: physical columns, `{name, type: {kind, …}, nullable, primary_key}` each; those that the mode
            adds are here and not in `declared_columns`.
        plan_sql: the statements in order, or the Spark plan in words; `plan_sql_label` says which.
        dry_run_rows_affected: rows written by a dry run before it was rolled back; None in a preview or after an error.
    """

    schema_qualified_name: str
    mode: str
    path: str | None = None
    engine: str | None = None
    path_reason: str | None = None
    augmented_columns: tuple[Mapping[str, Any], ...] = ()
    declared_columns: tuple[str, ...] = ()
    merge_keys: tuple[str, ...] = ()
    merge_keys_reason: str | None = None
    compare_columns: tuple[str, ...] = ()
    compare_columns_reason: str | None = None
    target_connection_name: str | None = None
    target_connection_info: Mapping[str, Any] | None = None
    plan_sql: tuple[str, ...] = ()
    plan_sql_label: str | None = None
    dry_run_rows_affected: int | None = None
    dry_run_error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {name: _plain(value) for name, value in asdict(self).items() if name != "engine"}


@dataclass(frozen=True, kw_only=True)
class PreviewResult:
    """A pipeline's load as it would run, or as a dry run found it. Nothing was changed either way."""

    pipeline_name: str
    schedule: str | None = None
    mode: str | None = None
    source_connection_name: str | None = None
    source_connection_info: Mapping[str, Any] | None = None
    source_sql: str | None = None
    targets: tuple[TargetPlan, ...] = ()
    is_dry_run: bool = False
    notes: tuple[str, ...] = ()
    transforms_post: tuple[TransformPlan, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no target of a dry run failed; always true for a preview."""
        return all(target.dry_run_error is None for target in self.targets)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        told = {name: _plain(value) for name, value in asdict(self).items()}
        return {**told, "targets": [target.to_dict() for target in self.targets]}

    def to_json(self) -> str:
        """As one line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False, default=str)


@dataclass(frozen=True, kw_only=True)
class ValidateResult:
    """What the source said about its SQL, and how its columns fit the declaration."""

    pipeline_name: str
    ok: bool
    source_sql: str | None = None
    errors: tuple[str, ...] = ()
    target_connection_name: str | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    def to_json(self) -> str:
        """As one line of JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False, default=str)


def _plain(value: Any) -> Any:
    """Tuples become lists, as they will after a trip through JSON."""
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value
