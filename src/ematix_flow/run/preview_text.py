"""A preview, a dry run or a validation as text for people. Colour is the terminal's business, not ours."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import dedent, indent
from typing import Any

from ematix_flow.run.preview_result import PreviewResult, TargetPlan, ValidateResult


def render_text(result: PreviewResult, verbose: bool = False) -> str:
    """The whole answer of `flow preview` and `flow dry-run`.

    Several targets are a compact list; with `verbose` each is written out, statements included. One target always is.
    """
    lines = [_headline(result), *_source(result)]
    for target in result.targets:
        detailed = verbose or len(result.targets) == 1
        lines += _target(target, verbose=verbose) if detailed else [_compact(target)]
    for i, step in enumerate(result.transforms_post):
        lines.append(_field(f"post[{i}]", f"{step.kind}: {_one_line(step.summary)}"))
    lines += [_field("note", note) for note in result.notes]
    return "\n".join(lines)


def render_validation(result: ValidateResult, verbose: bool = False) -> str:
    """What a good validation prints; a failed one prints its errors instead."""
    lines = [f"{result.pipeline_name}: {'ok' if result.ok else 'failed'}"]
    if verbose and result.source_sql:
        lines += [_field("source", ""), _block(result.source_sql)]
    lines += [_field("note", note) for note in result.notes]
    return "\n".join(lines)


def _headline(result: PreviewResult) -> str:
    words = [result.pipeline_name]
    if result.mode:
        words.append(result.mode)
    words.append(f"schedule {result.schedule}" if result.schedule else "(unscheduled)")
    if result.is_dry_run:
        words.append("dry run, rolled back")
    return "  ".join(words)


def _source(result: PreviewResult) -> list[str]:
    lines = [_field("source", _place(result.source_connection_name, result.source_connection_info))]
    if result.source_sql:
        lines.append(_block(result.source_sql))
    return lines


def _target(target: TargetPlan, *, verbose: bool) -> list[str]:
    place = _place(target.target_connection_name, target.target_connection_info)
    lines = [_field("target", f"{target.schema_qualified_name}  {target.mode}  on {place}")]
    if target.path:
        route = f"{_engine(target)} ({target.path})"
        lines.append(_field("route", route + _reason(target.path_reason)))
    if target.merge_keys:
        lines.append(_field("keys", ", ".join(target.merge_keys) + _reason(target.merge_keys_reason)))
    if target.compare_columns:
        lines.append(_field("compare", ", ".join(target.compare_columns) + _reason(target.compare_columns_reason)))
    lines += _columns(target, verbose=verbose)
    lines += _plan(target)
    lines += _outcome(target)
    return lines


def _engine(target: TargetPlan) -> str:
    return target.engine or {"same_db": "pushdown", "cross_db": "spark"}.get(target.path or "", target.path or "")


def _compact(target: TargetPlan) -> str:
    words = [target.schema_qualified_name, target.mode]
    if target.path:
        words.append(_engine(target) + _reason(target.path_reason))
    if target.merge_keys:
        words.append(f"keys {', '.join(target.merge_keys)}{_reason(target.merge_keys_reason)}")
    if target.dry_run_error is not None:
        words.append(f"failed: {_one_line(target.dry_run_error)}")
    elif target.dry_run_rows_affected is not None:
        words.append(_rows(target.dry_run_rows_affected))
    return _field("target", "  ".join(words))


def _columns(target: TargetPlan, *, verbose: bool) -> list[str]:
    added = [c["name"] for c in target.augmented_columns if c["name"] not in target.declared_columns]
    if not verbose:
        words = ", ".join(target.declared_columns)
        return [_field("columns", words + (f"  + {', '.join(added)}" if added else ""))] if words or added else []
    lines = []
    width = max((len(c["name"]) for c in target.augmented_columns), default=0)
    for column in target.augmented_columns:
        marks = [_type_text(column.get("type") or {})]
        marks += ["primary key"] if column.get("primary_key") else []
        marks += ["not null"] if column.get("nullable") is False else []
        marks += ["added"] if column["name"] in added else []
        lines.append(f"    {column['name']:<{width}}  {'  '.join(marks)}")
    return [_field("columns", str(len(lines))), *lines] if lines else []


def _plan(target: TargetPlan) -> list[str]:
    if not target.plan_sql:
        return []
    return [_field("plan", target.plan_sql_label or ""), *(_block(statement) for statement in target.plan_sql)]


def _outcome(target: TargetPlan) -> list[str]:
    if target.dry_run_error is not None:
        first, *rest = target.dry_run_error.splitlines() or [""]
        return [_field("failed", first), *(f"    {line}" for line in rest)]
    if target.dry_run_rows_affected is not None:
        return [_field("rows", _rows(target.dry_run_rows_affected))]
    return []


def _place(name: str | None, info: Mapping[str, Any] | None) -> str:
    """A connection for people: its name, and what is known of it."""
    facts = ", ".join(f"{key} {value}" for key, value in (info or {}).items() if value not in (None, ""))
    return (name or "?") + (f" ({facts})" if facts else "")


def _type_text(kind: Mapping[str, Any]) -> str:
    arguments = ", ".join(str(value) for key, value in kind.items() if key != "kind")
    return str(kind.get("kind", "?")) + (f"({arguments})" if arguments else "")


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'} affected"


def _reason(words: str | None) -> str:
    return f"  [{words}]" if words else ""


def _field(label: str, words: str) -> str:
    return f"  {label:<8} {words}".rstrip()


def _block(text: str) -> str:
    """SQL as it was written, without the indentation of the code around it."""
    text = text.strip("\n")
    first, newline, rest = text.partition("\n")
    whole = dedent(text) if first[:1].isspace() else first + newline + dedent(rest)
    return indent(whole.strip(), "    ")


def _one_line(text: str) -> str:
    return " ".join(text.split())
