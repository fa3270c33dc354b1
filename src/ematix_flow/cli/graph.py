"""`flow graph`: what waits for what, as layers in the terminal, or in the words of other programs."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.cli.declared import add_module, load
from ematix_flow.declare.trigger import TriggerOp
from ematix_flow.errors import UnknownName, closest, listed

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console
    from ematix_flow.cli.parser import CommandParser
    from ematix_flow.plan.graph import Graph
    from ematix_flow.run.registered import Orchestrated

FORMATS = ("text", "json", "mermaid", "dot")


def configure(parser: CommandParser) -> None:
    """The modules, how it is drawn, and a name in the middle of what is drawn."""
    add_module(parser)
    parser.add_argument("--format", dest="drawing", choices=FORMATS, default="text", help="how it is drawn")
    parser.add_argument("name", nargs="?", metavar="NAME", help="only this pipeline or workflow and what belongs to it")
    parser.say(
        example="flow graph --module my_pipelines\nflow graph --module my_pipelines --format mermaid report",
        then="flow run-due --module my_pipelines",
    )


def run(args: Namespace, console: Console) -> int:
    """Draw the graph."""
    load(args.module)
    picture = _picture(args.name)
    if console.is_json or args.drawing == "json":
        console.json(picture.to_dict())
    elif not picture.pipelines and not picture.workflows:
        console.line("no pipelines registered")
    else:
        draw = {"text": _text, "mermaid": _mermaid, "dot": _dot}[args.drawing]
        for line in draw(picture):
            console.line(line)
    return 0


@dataclass(frozen=True)
class Picture:
    """What is drawn: pipelines, what each waits for, and the workflows around them."""

    pipelines: tuple[Orchestrated, ...]
    workflows: tuple[Orchestrated, ...]
    graph: Graph

    def edges(self) -> list[tuple[str, str]]:
        """From an upstream to what waits for it."""
        shown = {entry.name for entry in self.pipelines}
        return [(up, entry.name) for entry in self.pipelines for up in entry.upstreams if up in shown]

    def to_dict(self) -> dict[str, Any]:
        """The picture as data; pipelines by name."""
        return {
            "nodes": [
                {"name": entry.name, **_clock(entry)} for entry in sorted(self.pipelines, key=lambda one: one.name)
            ],
            "edges": [{"from": upstream, "to": name} for upstream, name in self.edges()],
            "workflows": [
                {
                    "name": entry.name,
                    **_clock(entry),
                    "jobs": list(entry.jobs),
                    "triggered_by": None if entry.triggered_by is None else _condition(entry.triggered_by),
                    "on_message": entry.on_message,
                }
                for entry in self.workflows
            ],
        }


def _picture(name: str | None) -> Picture:
    from ematix_flow.plan.graph import Graph
    from ematix_flow.run.registered import orchestrated

    entries = orchestrated()
    pipelines = tuple(entry for entry in entries if entry.kind == "pipeline")
    workflows = tuple(entry for entry in entries if entry.kind == "workflow")
    graph = Graph({entry.name: entry.upstreams for entry in pipelines})
    if name is None:
        return Picture(pipelines, workflows, graph)
    workflow = next((entry for entry in workflows if entry.name == name), None)
    if workflow is not None:
        leaves = workflow.triggered_by.leaves() if workflow.triggered_by is not None else ()
        shown = {*workflow.jobs, *leaves}
    elif name in graph:
        shown = {name, *graph.all_upstream(name), *graph.all_downstream(name)}
    else:
        names = [entry.name for entry in entries]
        raise UnknownName(
            f"No pipeline or workflow is named '{name}'.", fix=closest(name, names) or f"known: {listed(sorted(names))}"
        )
    kept = tuple(entry for entry in pipelines if entry.name in shown)
    around = tuple(
        entry for entry in workflows if entry is workflow or (workflow is None and shown.intersection(entry.jobs))
    )
    return Picture(kept, around, Graph({entry.name: [up for up in entry.upstreams if up in shown] for entry in kept}))


# ── for people ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _text(picture: Picture) -> Iterator[str]:
    """Layers from top to bottom; an arrow points from what must have run."""
    entries = {entry.name: entry for entry in picture.pipelines}
    rows = [
        (str(depth) if i == 0 else "", _with_arrow(name, picture.graph.upstream(name)), _when(entries[name]))
        for depth, layer in enumerate(picture.graph.levels(), start=1)
        for i, name in enumerate(layer)
    ]
    widths = [max((len(row[i]) for row in rows), default=0) for i in (0, 1)]
    for depth, name, when in rows:
        yield f"{depth:>{widths[0]}}  {name:<{widths[1]}}  {when}".rstrip()
    for entry in picture.workflows:
        yield ""
        jobs = [_with_arrow(job, [up for up in picture.graph.upstream(job) if up in entry.jobs]) for job in entry.jobs]
        yield from _box(" · ".join(filter(None, (entry.name, _when(entry), _after(entry)))), jobs or ["(streams)"])


def _with_arrow(name: str, upstreams: Sequence[str]) -> str:
    return f"{name} ← {', '.join(upstreams)}" if upstreams else name


def _when(entry: Orchestrated) -> str:
    if entry.due is None:
        return f"on {entry.on_message}" if entry.on_message is not None else ""
    schedule = entry.due.schedule
    return f"{schedule.expression} {schedule.timezone}" if schedule.timezone else schedule.expression


def _after(entry: Orchestrated) -> str:
    return f"after {_words(entry.triggered_by)}" if entry.triggered_by is not None else ""


def _words(trigger: TriggerOp | str, *, inside: bool = False) -> str:
    if isinstance(trigger, str):
        return trigger
    joined = (" and " if trigger.kind == "all" else " or ").join(_words(one, inside=True) for one in trigger.members)
    return f"({joined})" if inside and len(trigger.members) > 1 else joined


def _box(title: str, lines: Sequence[str]) -> Iterator[str]:
    width = max(len(title) + 1, *(len(line) for line in lines))
    yield f"┌ {title} {'─' * (width - len(title))}┐"
    for line in lines:
        yield f"│ {line:<{width}} │"
    yield f"└{'─' * (width + 2)}┘"


# ── for programs ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _clock(entry: Orchestrated) -> dict[str, str | None]:
    schedule = entry.due.schedule if entry.due is not None else None
    return {
        "schedule": schedule.expression if schedule is not None else None,
        "timezone": schedule.timezone if schedule is not None else None,
    }


def _condition(trigger: TriggerOp | str) -> Any:
    return trigger if isinstance(trigger, str) else {trigger.kind: [_condition(one) for one in trigger.members]}


def _mermaid(picture: Picture) -> Iterator[str]:
    ids = {entry.name: f"n{i}" for i, entry in enumerate((*picture.pipelines, *picture.workflows), start=1)}
    yield "flowchart LR"
    for entry in picture.pipelines:
        label = "<br/>".join(_escaped(part) for part in (entry.name, _when(entry)) if part)
        yield f'  {ids[entry.name]}["{label}"]'
    for entry in picture.workflows:
        title = _escaped(" · ".join(filter(None, (entry.name, _when(entry)))))
        yield f'  subgraph {ids[entry.name]}["{title}"]'
        yield from (f"    {ids[job]}" for job in entry.jobs if job in ids)
        yield "  end"
    for upstream, name in picture.edges():
        yield f"  {ids[upstream]} --> {ids[name]}"
    for leaf, name in _triggers(picture):
        if leaf in ids:
            yield f"  {ids[leaf]} -.-> {ids[name]}"


def _dot(picture: Picture) -> Iterator[str]:
    yield "digraph pipelines {"
    yield "  rankdir=LR;"
    yield "  compound=true;"
    yield "  node [shape=box];"
    for entry in picture.pipelines:
        label = "\\n".join(_quoted_part(part) for part in (entry.name, _when(entry)) if part)
        yield f'  {_quoted(entry.name)} [label="{label}"];'
    inside = {}
    for i, entry in enumerate(picture.workflows):
        jobs = [job for job in entry.jobs if job in picture.graph]
        inside[entry.name] = (f"cluster_{i}", jobs)
        yield f"  subgraph cluster_{i} {{"
        yield f"    label={_quoted(' · '.join(filter(None, (entry.name, _when(entry)))))};"
        yield from (f"    {_quoted(job)};" for job in jobs)
        yield "  }"
    for upstream, name in picture.edges():
        yield f"  {_quoted(upstream)} -> {_quoted(name)};"
    for leaf, name in _triggers(picture):
        # An arrow between boxes needs a node in each of them.
        box, jobs = inside[name]
        start = leaf if leaf not in inside else next(iter(inside[leaf][1]), None)
        if jobs and start is not None and start in picture.graph:
            tail = f", ltail={inside[leaf][0]}" if leaf in inside else ""
            yield f"  {_quoted(start)} -> {_quoted(jobs[0])} [style=dashed, lhead={box}{tail}];"
    yield "}"


def _triggers(picture: Picture) -> Iterator[tuple[str, str]]:
    for entry in picture.workflows:
        if entry.triggered_by is not None:
            yield from ((leaf, entry.name) for leaf in entry.triggered_by.leaves())


def _escaped(text: str) -> str:
    """Mermaid knows entities, and no other way to write a quote."""
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")


def _quoted(text: str) -> str:
    return f'"{_quoted_part(text)}"'


def _quoted_part(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
