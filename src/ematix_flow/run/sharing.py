"""Which targets of a run take their rows from one reading of the source: found out when the first of them needs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ematix_flow.contracts.backend import KeepsBooks
from ematix_flow.contracts.plans import BatchPlan, SourceQuery, Stamp
from ematix_flow.contracts.session import SessionNeeds
from ematix_flow.declare.pipeline import PipelineSpec
from ematix_flow.declare.target import TargetSpec
from ematix_flow.errors import FlowError
from ematix_flow.plan.batch import SourceSide, plan_load
from ematix_flow.plan.joint import Member, join_readings
from ematix_flow.run.loads import new_run_id, now
from ematix_flow.run.places import opened, reading_from

if TYPE_CHECKING:
    from ematix_flow.spark.kept_rows import KeptRows


class Sharing:
    """The readings of one run that several targets share.

    Made by the runner of a fan-out and asked by every load that goes through Spark, in the order of the targets. Loads
    that are pushed down never ask, so a run that needs no Spark plans and reads nothing here. Closed when the run ends,
    however it ends.
    """

    def __init__(self, spec: PipelineSpec, query: SourceQuery) -> None:
        self.spec, self.query = spec, query
        self._kept: list[KeptRows] = []

    def rows_for(self, plan: BatchPlan, source: SourceSide) -> KeptRows | None:
        """The rows this target shares with others; None when it reads for itself alone."""
        from ematix_flow.spark.kept_rows import KeptRows

        for kept in self._kept:
            if kept.holds(plan):
                return kept
        others = list(self._later(plan))
        joint = join_readings(self.spec, Member(plan, source), [member for member, _ in others])
        if joint is None:
            return None
        needs = SessionNeeds()
        for member, asked in others:
            needs = needs | asked if member.plan.pipeline in joint.names else needs
        self._kept.append(KeptRows(joint, needs))
        return self._kept[-1]

    def close(self) -> None:
        """Let go of all rows."""
        while self._kept:
            self._kept.pop().close()

    def _later(self, plan: BatchPlan) -> Iterator[tuple[Member, SessionNeeds]]:
        """The targets after this one that will go through Spark too, planned on what is known of them now.

        A target that cannot be planned says so when its turn comes.
        """
        names = [self.spec.history_name(target) for target in self.spec.targets]
        for target in self.spec.targets[names.index(plan.pipeline) + 1 :]:
            try:
                found = self._planned(target)
            except FlowError:
                continue
            if found[0].plan.route.engine in ("spark", "native"):
                yield found

    def _planned(self, target: TargetSpec) -> tuple[Member, SessionNeeds]:
        with ExitStack() as stack:
            places = stack.enter_context(opened(self.spec, target))
            places = stack.enter_context(reading_from(places, self.query, self.spec))
            mark = None
            if target.incremental_column is not None and isinstance(places.target, KeepsBooks):
                mark = places.target.peek(self.spec.history_name(target))
            source = places.source_side(self.query, target)
            plan = plan_load(
                self.spec,
                target,
                source,
                places.target_side(target),
                stamp=Stamp(new_run_id(), now()),
                stored_mark=mark,
            )
            return Member(plan, source), places.target.needs
