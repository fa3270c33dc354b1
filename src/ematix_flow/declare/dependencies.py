"""What runs after what: upstreams as they are written, and the check that the whole graph makes sense.

A pipeline may name an upstream that is declared further down or in another module, so names are looked up when all has
been imported. What can be told at once, pipelines that wait for each other, is told at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ematix_flow.declare import registry
from ematix_flow.declare.registry import SourceLocation
from ematix_flow.declare.trigger import TriggerOp, trigger_met
from ematix_flow.errors import InvalidDeclaration, WrongDeclarationType, closest, listed


def upstream_names(written: Any) -> tuple[str, ...]:
    """Names of upstreams, given as names, as declared pipelines, or as functions that were registered."""
    if written is None:
        return ()
    if isinstance(written, TriggerOp):
        raise WrongDeclarationType(
            f"depends_on= takes pipelines and their names, all of which must have succeeded, not {written!r}.",
            fix="a list of them; AllOf(...) and AnyOf(...) are for triggered_by= of a workflow",
        )
    entries = [written] if isinstance(written, str) or callable(written) else list(written)
    return tuple(dict.fromkeys(pipeline_name("depends_on", entry) for entry in entries))


def pipeline_name(option: str, written: Any) -> str:
    """The name of one pipeline, however it was given."""
    if isinstance(written, str) and written.strip():
        return written
    for entry in registry.current().pipelines():
        if written is entry.thing or (callable(written) and written is getattr(entry.thing, "function", None)):
            return entry.name
    name = getattr(written, "name", None)
    if callable(written) and isinstance(name, str):
        return name
    raise WrongDeclarationType(
        f"{option}= takes pipelines and their names, not {written!r}.",
        fix="a function must be registered first" if callable(written) else None,
    )


def refuse_cycle(name: str, upstreams: Iterable[str], where: SourceLocation) -> None:
    """Refuse a pipeline that would wait for itself, directly or through pipelines that are already declared.

    Raises:
        InvalidDeclaration: (a ValueError) It would; the message has the path.
    """
    declared = registry.current()
    if name in upstreams or declared.is_awaited(name):
        cycle = find_cycle({**declared.upstreams(), name: tuple(upstreams)}, begin=(name,))
        if cycle is not None:
            raise _cyclic(cycle, where)


def check_graph() -> None:
    """Check everything that is declared: every upstream, job and trigger exists, and nothing waits for itself.

    Called when a module has been imported.

    Raises:
        InvalidDeclaration: (a ValueError) A name that nothing declares, or a cycle.
    """
    declared = registry.current()
    pipelines = {entry.name: entry for entry in declared.pipelines()}
    workflows = {entry.name: entry for entry in declared.workflows()}
    streams = {entry.name for entry in declared.streaming_pipelines()}
    edges: dict[str, tuple[str, ...]] = declared.upstreams()
    for name, upstreams in edges.items():
        for upstream in upstreams:
            if upstream not in pipelines:
                where = pipelines[name].where
                raise _unknown(f"Pipeline '{name}' depends on '{upstream}'", upstream, pipelines, where)
    for name, entry in workflows.items():
        workflow: Any = entry.thing
        if name in pipelines:
            raise InvalidDeclaration(
                f"'{name}' is a workflow and a pipeline, and both keep their runs under this name.",
                where=str(entry.where),
                fix=f"give one of them another name; the pipeline is {pipelines[name].where}",
            )
        for job in workflow.jobs:
            if job not in pipelines and job not in streams:
                raise _unknown(f"Workflow '{name}' has the job '{job}'", job, [*pipelines, *streams], entry.where)
        for leaf in workflow.upstreams:
            if leaf not in pipelines and leaf not in workflows:
                raise _unknown(f"Workflow '{name}' waits for '{leaf}'", leaf, [*pipelines, *workflows], entry.where)
        edges[name] = workflow.upstreams
    cycle = find_cycle(edges)
    if cycle is not None:
        raise _cyclic(cycle, (pipelines.get(cycle[0]) or workflows[cycle[0]]).where)
    things = {name: entry.thing for name, entry in pipelines.items()}
    _refuse_circles({name: entry.thing for name, entry in workflows.items()}, things)


def _refuse_circles(workflows: Mapping[str, Any], pipelines: Mapping[str, Any]) -> None:
    """Refuse a workflow whose own jobs, or what they trigger in turn, are all that it takes to start it again."""
    owner = {job: name for name, workflow in workflows.items() for job in workflow.jobs}  # the later one's
    unclocked = {name: one for name, one in workflows.items() if one.triggered_by is not None and one.schedule is None}
    listening = {name: one for name, one in workflows.items() if one.on_message is not None}
    for name, workflow in {**unclocked, **listening}.items():
        done: set[str] = set()
        started = {name}
        while started:
            done |= started | {job for job, by in owner.items() if by in started}
            started = {
                other
                for other, one in unclocked.items()
                if other not in done and trigger_met(one.triggered_by, done.__contains__)
            }
        if name in listening:
            writers = sorted(one for one in done if workflow.on_message in _topics_of(pipelines.get(one)))
            if writers:
                raise InvalidDeclaration(
                    f"Workflow '{name}' starts what writes into '{workflow.on_message}', {listed(writers)}, and so "
                    "would never come to rest.",
                    where=str(workflow.where),
                    fix="on_message= names a topic that others write into",
                )
        elif trigger_met(workflow.triggered_by, done.__contains__):
            own = listed(sorted(done & {*workflow.upstreams}))
            raise InvalidDeclaration(
                f"Workflow '{name}' is triggered by what it starts, {own}, and would never come to rest.",
                where=str(workflow.where),
                fix="triggered_by= names what runs without it",
            )


def _topics_of(pipeline: Any) -> set[str]:
    """Where a declared pipeline writes, as topics are written in `on_message=`; of bare functions nobody knows."""
    targets = getattr(getattr(pipeline, "spec", None), "targets", ())
    return {
        f"{getattr(one.connection, 'name', one.connection)}/{one.broker.topic or one.table.name}" for one in targets
    }


def find_cycle(edges: Mapping[str, Iterable[str]], *, begin: Iterable[str] | None = None) -> list[str] | None:
    """Names along a cycle, each waiting for the next one, the first again at the end; None when there is no cycle.

    With `begin`, only what can be reached from these names is looked at.

    >>> find_cycle({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]})
    ['a', 'b', 'c', 'a']
    """
    done: set[str] = set()
    for start in edges if begin is None else begin:
        if start in done:
            continue
        path: dict[str, None] = {start: None}
        branches = [iter(edges[start])]
        while branches:  # no recursion: a chain may be longer than Python's stack
            upstream = next(branches[-1], None)
            if upstream is None:
                branches.pop()
                done.add(path.popitem()[0])
            elif upstream in path:
                names = list(path)
                return [*names[names.index(upstream) :], upstream]
            elif upstream not in done:
                path[upstream] = None
                branches.append(iter(edges.get(upstream, ())))
    return None


def _cyclic(cycle: list[str], where: SourceLocation) -> InvalidDeclaration:
    return InvalidDeclaration(
        f"'{cycle[0]}' and '{cycle[-2]}' wait for each other in a cycle: {' → '.join(cycle)}."
        if len(cycle) > 2
        else f"'{cycle[0]}' waits for itself: a cycle, {' → '.join(cycle)}.",
        where=str(where),
        fix="an arrow points at what must run before; take one of them out",
    )


def _unknown(what: str, name: str, known: Iterable[str], where: SourceLocation) -> InvalidDeclaration:
    names = sorted(known)
    return InvalidDeclaration(
        f"{what}, which nothing declares.",
        where=str(where),
        fix=closest(name, names) or f"import the module that declares it; known here: {listed(names)}",
    )
