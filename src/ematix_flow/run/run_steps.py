"""The steps of a pipeline's run as its record keeps them: `source`, `load:<table>` per target, then `post[i]`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from ematix_flow.contracts.runtime import StepStatus
from ematix_flow.declare.pipeline import PipelineSpec
from ematix_flow.declare.table import TableSpec
from ematix_flow.errors import FlowError, RunCancelled
from ematix_flow.run.recorder import RunRecorder

SOURCE = "source"


def load_step(table: TableSpec) -> str:
    """The step that loads a table."""
    return f"load:{table}"


class RunSteps:
    """An observer that tells a recorder the steps of a run, and what happens inside a load as stages of its step.

    All steps are known before the run begins, with what each waits for: a run that ends early says which never came.
    """

    def __init__(self, recorder: RunRecorder, spec: PipelineSpec) -> None:
        self._recorder = recorder
        self._loads = [load_step(target.table) for target in spec.targets]
        self._load: str | None = None
        self._began_in: dict[str, str | None] = {}
        posts = [f"post[{index}]" for index in range(len(spec.transforms_post))]
        recorder.expect(SOURCE)
        for load in self._loads:
            recorder.expect(load, depends_on=[SOURCE])
        for index, post in enumerate(posts):
            recorder.expect(post, depends_on=[posts[index - 1]] if index else self._loads)

    @contextmanager
    def during(self, step: str) -> Iterator[None]:
        """A step, for as long as the block takes."""
        began = time.perf_counter()
        self.step(step, "running")
        try:
            yield
        except RunCancelled:
            raise  # as an interruption: how the run ends is how the step ends
        except Exception as exc:
            said = exc.message if isinstance(exc, FlowError) else type(exc).__name__
            self.step(step, "failed", said, (time.perf_counter() - began) * 1000)
            raise
        took_ms = (time.perf_counter() - began) * 1000
        if step == SOURCE:  # a load begins at once
            self._recorder.step(step, "succeeded", "", took_ms, is_news=False)
        else:
            self.step(step, "succeeded", "", took_ms)

    def planned(self, headline: str, route: str) -> None:
        """Passed on."""
        self._recorder.planned(headline, route)

    def step(self, name: str, status: StepStatus, detail: str = "", duration_ms: float | None = None) -> None:
        """A step, or a stage of the load that is under way; anything else is a step of its own after the loads."""
        if name in self._loads:
            self._load = name if status == "running" else None
            self._recorder.step(name, status, detail, duration_ms)
            return
        if status == "running":
            self._began_in[name] = self._load
        load = self._began_in.get(name, self._load)  # that a stage failed is heard after its load did
        if load is None:
            self._recorder.step(name, status, detail, duration_ms)
        else:
            self._recorder.stage(load, name, status, detail, duration_ms)

    def progress(self, stage: str, rows: int, total: int | None = None) -> None:
        """Passed on."""
        self._recorder.progress(stage, rows, total)

    def resumes_at(self, watermark: str | None) -> None:
        """Passed on."""
        self._recorder.resumes_at(watermark)
