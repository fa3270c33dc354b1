"""Workflows: pipelines that run as one, in the order of their own dependencies, when a condition is met."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ematix_flow.declare import registry
from ematix_flow.declare.dependencies import pipeline_name
from ematix_flow.declare.registry import SourceLocation
from ematix_flow.declare.schedule import ORCHESTRATION_OPTIONS, Orchestration, orchestration
from ematix_flow.declare.trigger import AllOf, TriggerOp
from ematix_flow.errors import InvalidDeclaration, WrongDeclarationType, closest, listed

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""What Kafka allows as the name of a topic; there is no slash in it."""


@dataclass(frozen=True, kw_only=True)
class Workflow(Orchestration):
    """A declared workflow.

    Attributes:
        jobs: Names of its pipelines.
        triggered_by: What must have succeeded since the workflow last did; None when something else starts it.
        on_message: The topic whose new messages start it, as `connection/topic`.
    """

    name: str
    jobs: tuple[str, ...]
    where: SourceLocation
    triggered_by: TriggerOp | None = None
    on_message: str | None = None

    @property
    def upstreams(self) -> tuple[str, ...]:
        """Every name that `triggered_by` mentions."""
        return self.triggered_by.leaves() if self.triggered_by is not None else ()


def declare_workflow(
    *,
    name: str,
    jobs: Sequence[Any],
    where: SourceLocation,
    triggered_by: Any = None,
    on_message: str | None = None,
    **options: Any,
) -> Workflow:
    """Check a workflow and register it.

    Raises:
        InvalidDeclaration: (a ValueError) An empty or double name, no job or no trigger, or triggers that exclude each
            other.
    """
    if not isinstance(name, str) or not name.strip():
        raise InvalidDeclaration("A workflow needs a name.", where=str(where))
    said = f"Workflow '{name}'"
    _refuse_options(said, options)
    members = _jobs(said, jobs)
    if options.get("schedule") is None and options.get("timezone") is not None:
        raise InvalidDeclaration(f"{said}: timezone= needs schedule=.", where=str(where))
    trigger = _trigger(said, triggered_by)
    streams = {entry.name for entry in registry.current().streaming_pipelines()}
    has_trigger = options.get("schedule") is not None or trigger is not None
    if on_message is not None:
        if has_trigger:
            raise InvalidDeclaration(
                f"{said}: on_message= stands alone, without triggered_by= and schedule=.", where=str(where)
            )
        has_trigger = _is_topic(said, on_message, where)
    streaming = [job for job in members if job in streams]
    if streaming and has_trigger:
        raise InvalidDeclaration(
            f"{said}: '{streaming[0]}' is a stream and runs all the time, so nothing can trigger the workflow.",
            where=str(where),
            fix="take the trigger away, or the stream",
        )
    if not streaming and not has_trigger:
        raise InvalidDeclaration(
            f"{said} has no trigger.",
            where=str(where),
            fix='pass schedule="0 2 * * *", triggered_by="orders" or on_message="connection/topic"',
        )
    workflow = Workflow(
        name=name,
        jobs=members,
        where=where,
        triggered_by=trigger,
        on_message=on_message,
        **vars(orchestration(name, options, what="Workflow")),
    )
    _warn_of_moves(workflow)
    registry.current().add_workflow(name, workflow, where)
    return workflow


def topic_place(on_message: str) -> tuple[str, str]:
    """The connection and the topic that `on_message=` names.

    >>> topic_place("events/orders")
    ('events', 'orders')
    """
    connection, _, topic = on_message.rpartition("/")
    return connection, topic


def jobs_by_workflow() -> dict[str, tuple[str, ...]]:
    """Every workflow and its jobs; a job that two of them name belongs to the later one."""
    owner: dict[str, str] = {}
    workflows: list[Any] = [entry.thing for entry in registry.current().workflows()]
    for workflow in workflows:
        owner.update(dict.fromkeys(workflow.jobs, workflow.name))
    return {one.name: tuple(job for job in one.jobs if owner[job] == one.name) for one in workflows}


def _refuse_options(said: str, options: Mapping[str, Any]) -> None:
    known = [option for option in ORCHESTRATION_OPTIONS if option not in ("depends_on", "upstream_freshness_secs")]
    for option in options:
        if option == "depends_on":
            raise InvalidDeclaration(
                f"{said}: depends_on= belongs to pipelines.", fix="triggered_by= says what a workflow waits for"
            )
        if option not in known:
            raise WrongDeclarationType(
                f"{said}: ematix.workflow has no option '{option}'.", fix=closest(option, known) or listed(known)
            )


def _is_topic(said: str, written: Any, where: SourceLocation) -> bool:
    connection, topic = topic_place(written) if isinstance(written, str) else ("", "")
    if connection.strip() and _TOPIC.fullmatch(topic):
        return True
    raise InvalidDeclaration(
        f"{said}: on_message= names a Kafka connection and a topic of it, not {written!r}.",
        where=str(where),
        fix='write on_message="connection/topic", as in on_message="events/orders"',
    )


def _jobs(said: str, written: Any) -> tuple[str, ...]:
    if isinstance(written, str) or not isinstance(written, Sequence):
        raise WrongDeclarationType(f"{said}: jobs= takes a list of pipelines and their names.")
    names = tuple(pipeline_name("jobs", job) for job in written)
    if not names:
        raise InvalidDeclaration(f"{said} has no jobs.", fix="name at least one pipeline")
    doubled = next((job for i, job in enumerate(names) if job in names[:i]), None)
    if doubled is not None:
        raise InvalidDeclaration(f"{said} has the job '{doubled}' twice.", fix="name it once")
    return names


def _trigger(said: str, written: Any) -> TriggerOp | None:
    """A name, a list (all of them), or a condition."""
    if written is None or isinstance(written, TriggerOp):
        return written
    names = [written] if isinstance(written, str | Workflow) or callable(written) else written
    if not isinstance(names, Sequence):
        raise InvalidDeclaration(f"{said}: triggered_by= takes names, AllOf(...) and AnyOf(...), not {written!r}.")
    return AllOf(*(one if isinstance(one, TriggerOp) else _leaf(said, one) for one in names))


def _leaf(said: str, written: Any) -> str:
    if isinstance(written, Workflow):
        return written.name
    try:
        return pipeline_name("triggered_by", written)
    except WrongDeclarationType as exc:
        raise InvalidDeclaration(f"{said}: {exc.message}", fix=exc.fix) from None


def _warn_of_moves(workflow: Workflow) -> None:
    for other, jobs in jobs_by_workflow().items():
        for job in jobs:
            if other != workflow.name and job in workflow.jobs:
                warnings.warn(
                    f"job '{job}' moves from workflow '{other}' to '{workflow.name}'; it belongs to the later one",
                    stacklevel=4,
                )
