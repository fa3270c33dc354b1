"""One source, several targets: the function is called once, rows are read once, and each target is a load of its own.

Targets are loaded in the order they are listed, each with its own lease and its own transaction. A target that is done
stays open in its books until the whole run is over: if the process dies on the way, the next run finds what the target
already holds and does only what is missing.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from ematix_flow.contracts.backend import KeepsBooks
from ematix_flow.contracts.crashpoints import reached
from ematix_flow.contracts.plans import OpenedRun, RunResult, SourceQuery
from ematix_flow.contracts.runtime import RunObserver
from ematix_flow.declare.pipeline import PipelineSpec
from ematix_flow.declare.redaction import scrub
from ematix_flow.declare.target import TargetSpec
from ematix_flow.errors import FlowError, RunCancelled, StaleLease
from ematix_flow.run.loads import load_target, new_run_id, now, warn_about_keys
from ematix_flow.run.places import opened, reading_from
from ematix_flow.run.post import finish_load
from ematix_flow.run.run_steps import SOURCE, RunSteps, load_step
from ematix_flow.run.sharing import Sharing
from ematix_flow.run.source_rows import source_of


class FanOut:
    """One run of a pipeline with several targets.

    Args:
        spec: the pipeline.
        run_id: the run's own id; the first target's rows carry it, those of the others an id of their own.
        logical_run: which run this is, for all targets; without it each target's own books say.
        observer: told what happens; stages follow the `load:<table>` step they belong to.
        steps: told when the source is asked, too.
    """

    def __init__(
        self, spec: PipelineSpec, run_id: str, logical_run: str | None, observer: RunObserver, steps: RunSteps
    ) -> None:
        self.spec, self.run_id, self.logical_run, self.observer, self.steps = spec, run_id, logical_run, observer, steps
        self._done: list[tuple[KeepsBooks, OpenedRun]] = []

    def run(self) -> RunResult | Mapping[str, Any]:
        """Load every target.

        Returns:
            `{"schema.table": result}`; with `continue_on_target_failure`, `{"results": …, "errors": …}`; or what the
            function returned, if that was a mapping.

        Raises:
            FlowError: a target failed, and later ones were not tried; or the function did, and no target was.
        """
        with self.steps.during(SOURCE):
            query = self._source()
        if not isinstance(query, SourceQuery):
            return query
        results: dict[str, Any] = {}
        errors: dict[str, str] = {}
        with ExitStack() as held:
            sharing = Sharing(self.spec, query)
            held.callback(sharing.close)
            try:
                for index, target in enumerate(self.spec.targets):
                    name = str(target.table)
                    try:
                        results[name] = self._watched(index, target, query, sharing, held)
                    except (RunCancelled, StaleLease):
                        raise  # the run is over, not only this target
                    except FlowError as exc:
                        if not self.spec.continue_on_target_failure:
                            raise
                        errors[name] = scrub(exc.message)
                    reached("target-done")
            except Exception:
                # An interruption passes here, and leaves what is done open: the next run takes it up again.
                self._close_done(after_failure=True)
                raise
            self._close_done()
        if self.spec.continue_on_target_failure:
            return RunResult(results=results, errors=errors)
        return RunResult(**results)

    def _source(self) -> SourceQuery | Mapping[str, Any]:
        """Call the function, with the connections of the first target that can be had."""
        for index, target in enumerate(self.spec.targets):
            with ExitStack() as stack:
                try:
                    places = stack.enter_context(opened(self.spec, target))
                except FlowError as exc:
                    if index + 1 == len(self.spec.targets) or not self.spec.continue_on_target_failure:
                        raise _named(exc, target) from exc.__cause__
                    continue
                return source_of(self.spec, places)
        raise AssertionError("a pipeline has a target")

    def _watched(self, index: int, target: TargetSpec, query: SourceQuery, sharing: Sharing, held: ExitStack) -> Any:
        step, began = load_step(target.table), time.perf_counter()
        self.observer.step(step, "running")
        try:
            result, finish = self._load(index, target, query, sharing, held)
        except FlowError as exc:
            _named(exc, target)
            self.observer.step(step, "failed", exc.message, (time.perf_counter() - began) * 1000)
            raise
        self.observer.step(step, "succeeded", "", (time.perf_counter() - began) * 1000)
        try:
            finish()
        except FlowError as exc:
            raise _named(exc, target) from exc.__cause__
        return result

    def _load(
        self, index: int, target: TargetSpec, query: SourceQuery, sharing: Sharing, held: ExitStack
    ) -> tuple[RunResult, Callable[[], None]]:
        """Load it; its result, and what comes after the load."""
        is_last = index == len(self.spec.targets) - 1
        spec = self.spec if is_last else replace(self.spec, transforms_post=())
        warn_about_keys(spec, target)
        with ExitStack() as turn:
            places = turn.enter_context(opened(spec, target))
            places = turn.enter_context(reading_from(places, query, spec))
            books = places.books()
            turn.enter_context(books.lease(spec.history_name(target)))
            result, run = load_target(
                spec,
                target,
                places,
                query,
                run_id=self.run_id if index == 0 else new_run_id(),
                logical_run=self.logical_run,
                observer=self.observer,
                sharing=sharing,
            )
            held.enter_context(turn.pop_all())  # the lease is held until the run is over
        if is_last:
            return result, lambda: finish_load(spec, places.target_connection, books, run, result, self.observer)
        return result, lambda: self._done.append((books, run))

    def _close_done(self, *, after_failure: bool = False) -> None:
        """The runs of the targets that are done, over: nothing of them is left to repeat."""
        while self._done:
            books, run = self._done.pop()
            try:
                books.close_run(run, error=None, now=now())
            except FlowError as exc:
                if not after_failure:
                    raise
                warnings.warn(f"'{run.pipeline}' could not be closed in its target: {exc.message}", stacklevel=2)


def _named(exc: FlowError, target: TargetSpec) -> FlowError:
    """The same error, saying which target it is about."""
    if str(target.table) not in exc.message:
        exc.message = f"{target.table}: {exc.message}"
    return exc
