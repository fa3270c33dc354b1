"""Plans and reports in a few words, for the console and the run log; the same words on every route."""

from __future__ import annotations

from ematix_flow.contracts.plans import BatchPlan, SettleReport
from ematix_flow.errors import counted


def report_words(report: SettleReport, plan: BatchPlan) -> str:
    """A settled load in a few words: `18 new · 7 changed · 1,179 same`."""
    if report.replayed:
        return "already applied"
    if not (plan.target.is_merge or plan.target.is_versioned):
        return counted(report.inserted, "row")
    words = [f"{report.inserted:,} new", f"{report.updated:,} changed", f"{report.unchanged:,} same"]
    if plan.target.is_versioned:
        words = [counted(report.inserted, "version"), f"{report.closed:,} closed", f"{report.updated:,} corrected"]
    if report.deleted:
        words.append(f"{report.deleted:,} deleted")
    return " · ".join(words)


def plan_words(plan: BatchPlan) -> str:
    """A plan in a few words: `2 statements, creates the table`."""
    change = {
        "create": "creates the table",
        "match": "no schema change",
        "evolve": counted(len(plan.ddl.statements), "schema change"),
        "warn": "schema drift: " + "; ".join(plan.ddl.differences),
    }[plan.ddl.action]
    since = f", since {plan.watermark.last_value}" if plan.watermark and plan.watermark.last_value else ""
    return f"{counted(len(plan.statements), 'statement')}, {change}{since}"
