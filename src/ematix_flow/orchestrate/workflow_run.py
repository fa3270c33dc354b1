"""One run of a workflow: its jobs, upstreams first, each claimed and recorded like any, together the run's steps."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ematix_flow.contracts.orchestration import AttemptState
from ematix_flow.contracts.run_context import RunContext, between_steps, current_run
from ematix_flow.errors import RunCancelled, StaleLease, StepFailed
from ematix_flow.orchestrate.identity import worker_name
from ematix_flow.orchestrate.outcomes import cause_of, error_words
from ematix_flow.orchestrate.recovery import give_back, take
from ematix_flow.plan.graph import Graph
from ematix_flow.plan.retries import after_failure
from ematix_flow.run.recorder import RunRecorder
from ematix_flow.run.registered import Orchestrated, orchestrated
from ematix_flow.watch.openlineage import RunLineage
from ematix_flow.watch.traces import pipeline_run_span

if TYPE_CHECKING:
    from ematix_flow.orchestrate.work import Work

_DONE = "done by an earlier run"
_JOB_LEASE_S = 60.0
_PATIENCE_S = 60.0


def run_workflow(work: Work, entry: Orchestrated, logical_run: str | None) -> dict[str, Any]:
    """Run the member jobs. One that fails holds back those that wait for it; the others run.

    Raises:
        StepFailed: a job failed, after everything that could run did.
    """
    run = current_run()
    assert run is not None
    return _WorkflowRun(work, entry, run, logical_run).run()


class _WorkflowRun:
    def __init__(self, work: Work, entry: Orchestrated, run: RunContext, logical_run: str | None) -> None:
        self._work, self._entry, self._run, self._logical_run = work, entry, run, logical_run
        known = {one.name: one for one in orchestrated()}
        self._jobs = {name: known[name] for name in entry.jobs}
        self._graph = Graph({name: job.upstreams for name, job in self._jobs.items()})
        self._recorder = RunRecorder(
            work.history,
            entry.name,
            run.run_id,
            attempt=run.attempt,
            extras=run.facts,
            patience_s=run.record_patience_s,
        )
        self._chance = random.Random()

    def run(self) -> dict[str, Any]:
        run = self._run
        lineage = RunLineage(self._entry.name, run.run_id, nominal_at=run.slot, job_type="WORKFLOW")
        # Its jobs are runs of their own, below it.
        with pipeline_run_span(self._entry.name, run.attempt), lineage:
            lineage.started()
            return self._run_jobs()

    def _run_jobs(self) -> dict[str, Any]:
        order = self._graph.order(self._jobs)
        done = self._done_before()
        self._recorder.start()
        for name in order:
            self._recorder.step(name, "pending", depends_on=self._within(name))
        results: dict[str, Any] = {}
        failed: dict[str, BaseException] = {}
        left_out: set[str] = set()
        try:
            for name in order:
                if name in done:
                    self._recorder.step(name, "skipped", _DONE)
                    continue
                if any(upstream in failed or upstream in left_out for upstream in self._within(name)):
                    left_out.add(name)
                    self._recorder.step(name, "skipped", "a job before it failed")
                    continue
                between_steps()
                self._run_job(self._jobs[name], results, failed)
        except BaseException as exc:
            self._recorder.finish("failed" if isinstance(exc, StaleLease) else "cancelled", error=exc)
            raise
        if failed:
            first = next(iter(failed))
            kind, said = error_words(failed[first])
            problem = StepFailed(
                f"Job '{first}' of workflow '{self._entry.name}' failed: {kind}: {said}",
                fix=f"mend it, then: flow runs restart {self._run.run_id} --from-step {first}",
            )
            self._recorder.finish("failed", result=results, error=problem)
            raise problem from cause_of(failed[first])
        self._recorder.finish("succeeded", result=results)
        return results

    def _within(self, name: str) -> list[str]:
        """Upstreams that are jobs of this workflow; those outside it do not count."""
        return [upstream for upstream in self._jobs[name].upstreams if upstream in self._jobs]

    def _done_before(self) -> set[str]:
        """Jobs that are not repeated: by a restart all but the named one and what waits for it, by another attempt of
        the same slot those that succeeded."""
        wanted, first = self._run.facts.get("jobs"), self._run.restart_from
        if wanted:
            return set(self._jobs) - set(wanted)
        is_restart = first is not None and first in self._jobs
        prior_id = self._run.facts.get("prior_run_id" if is_restart else "goes_on_after")
        prior = self._work.store.get_run(str(prior_id)) if prior_id else None
        steps = prior.extras.get("steps", ()) if prior is not None else ()
        again = {first, *self._graph.all_downstream(str(first))} if is_restart else set()
        done = {step["name"] for step in steps if step.get("status") == "succeeded" or step.get("detail") == _DONE}
        return done - again

    def _run_job(self, job: Orchestrated, results: dict[str, Any], failed: dict[str, BaseException]) -> None:
        self._recorder.step(job.name, "running")
        began = time.monotonic()
        try:
            results[job.name] = self._tried(job)
        except (RunCancelled, StaleLease):
            raise  # the whole run is over
        except Exception as exc:
            failed[job.name] = exc
            self._recorder.step(job.name, "failed", error_words(exc)[1], (time.monotonic() - began) * 1000)
        else:
            self._recorder.step(job.name, "succeeded", "", (time.monotonic() - began) * 1000)

    def _tried(self, job: Orchestrated) -> Any:
        """The job with its own retries, waited for in place: the workflow holds its claim meanwhile."""
        state, began = AttemptState(), time.monotonic()
        while True:
            try:
                return self._once(job, state.attempt_count + 1)
            except (RunCancelled, StaleLease):
                raise
            except Exception as exc:
                now = self._work.now()
                after = after_failure(job.retry, state, None, now, cause_of(exc), jitter=self._chance)
                total = job.retry.max_total_secs
                over = total is not None and time.monotonic() - began > total
                if after.retry_at is None or over:
                    raise
                state = after.state
                time.sleep(max(0.0, (after.retry_at - self._work.now()).total_seconds()))

    def _once(self, job: Orchestrated, attempt: int) -> Any:
        token = self._claimed(job)
        facts: Mapping[str, Any] = {
            **_slot_of(self._run),
            "workflow": self._entry.name,
            "workflow_run": self._run.run_id,
            "claimed": True,
        }
        context = replace(
            self._run, pipeline=job.name, run_id=str(uuid4()), attempt=attempt, restart_from=None, facts=facts
        )
        try:
            return self._work.run_job(job, context, self._logical_run, token, _JOB_LEASE_S)
        finally:
            give_back(self._work.store, token)

    def _claimed(self, job: Orchestrated) -> str:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            token, holder = take(self._work.store, job.name, worker_name(), _JOB_LEASE_S)
            if token is not None:
                return token
            if time.monotonic() > deadline:
                raise StepFailed(f"Job '{job.name}' is being run elsewhere: {holder}.")
            time.sleep(0.5)


def _slot_of(run: RunContext) -> dict[str, Any]:
    return {name: run.facts[name] for name in ("slot", "trigger", "logical_run") if name in run.facts}
