"""`flow run`: one pipeline, now. The result is one line of JSON on stdout, the story is on stderr."""

from __future__ import annotations

import logging
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ematix_flow.cli.declared import add_module, add_name, declared_pipeline, prints_on_stderr
from ematix_flow.cli.run_log_options import add_run_log, run_log_for_writing
from ematix_flow.cli.spark_options import add_spark_place, spark_place
from ematix_flow.declare.pipeline import Pipeline, checked_engine
from ematix_flow.errors import FlowError, StepFailed
from ematix_flow.run.process import ProcessMark, this_process
from ematix_flow.run.recorder import RunRecorder

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console
    from ematix_flow.cli.parser import CommandParser
    from ematix_flow.contracts.runtime import RunHistory

log = logging.getLogger(__name__)


def configure(parser: CommandParser) -> None:
    """The pipeline, and how this one run differs."""
    add_module(parser)
    add_name(parser, "pipeline")
    parser.add_argument(
        "--run-id", metavar="ID", help="name of the logical run; repeating one that has been applied changes nothing"
    )
    parser.add_argument("--engine", metavar="E", help="auto, pushdown, spark or native, instead of the declared one")
    add_spark_place(parser)
    add_run_log(parser, may_be_off=True)
    parser.say(
        "exit codes: 0 loaded, 1 the run failed, 2 the command or the configuration is wrong, 130 interrupted",
        example="flow run --module my_pipelines sync_customers\n"
        "flow run --module my_pipelines sync_customers --run-id 2026-03-01",
        then="flow runs list   shows how it ended, flow runs show ID every step of it",
    )


def run(args: Namespace, console: Console) -> int:
    """Run it, record it, print the result."""
    from ematix_flow.run.runlogs.open import use_run_log

    pipeline = declared_pipeline(args)
    with spark_place(args), run_log_for_writing(args, console) as history, use_run_log(history):
        result = _result(pipeline, args, console, history)
    console.json(result)
    return 1 if isinstance(result, Mapping) and result.get("errors") else 0


def _result(pipeline: Any, args: Namespace, console: Console, history: RunHistory | None) -> Any:
    if not isinstance(pipeline, Pipeline):
        with prints_on_stderr():
            return _called(pipeline, args.name, history)
    from ematix_flow.cli.console import RunDisplay
    from ematix_flow.run.runner import run_pipeline

    spec = pipeline.spec if args.engine is None else replace(pipeline.spec, engine=checked_engine(args.engine))
    if console.is_json:
        with prints_on_stderr():
            return run_pipeline(spec, logical_run=args.run_id)
    with prints_on_stderr(), RunDisplay(console, spec.name) as display:
        try:
            result = run_pipeline(spec, logical_run=args.run_id, observer=display)
        except FlowError:
            display.done(_newest_run(spec.name, history), failed=True)
            raise
        display.done(_run_id(result), recorded=history is not None)
    return result


def _called(function: Any, name: str, history: RunHistory | None) -> Any:
    """The result of a bare function that was registered by name: it runs itself, and is recorded all the same."""
    recorder = RunRecorder(history, name, str(uuid4()))
    recorder.start()
    try:
        result = function()
    except KeyboardInterrupt:
        recorder.finish("cancelled", error="interrupted")
        raise
    except Exception as exc:
        recorder.finish("failed", error=exc)
        if isinstance(exc, FlowError):
            raise
        raise StepFailed(f"Pipeline '{name}' raised {type(exc).__name__}: {exc}") from exc
    recorder.finish("succeeded", result)
    return result


def _run_id(result: Any) -> str | None:
    """The id of a run, or of the first of its targets."""
    if not isinstance(result, Mapping):
        return None
    if isinstance(result.get("run_id"), str):
        return str(result["run_id"])
    parts = [part for part in result.values() if isinstance(part, Mapping)]
    return next((found for part in parts if (found := _run_id(part)) is not None), None)


def _newest_run(pipeline: str, history: RunHistory | None) -> str | None:
    """The run that just failed: an exception carries no run id, the run log does."""
    if history is None:
        return None
    try:
        records, _ = history.list_runs(pipeline=pipeline, limit=1)
    except Exception as exc:  # the run has failed already; its own error is the one to show
        log.debug("the run log does not answer: %s", exc)
        return None
    mine = [r for r in records if ProcessMark.from_dict(r.extras.get("process")) == this_process()]
    return mine[0].run_id if mine else None
