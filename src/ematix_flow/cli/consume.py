"""`flow consume`: a stream, until it is told to stop. `flow consume-list`: the streams of a module.

The summary is the last line of stdout, the story is on stderr. Exit codes: 0 stopped or drained, 1 it could not start
or go on, 2 the command line is wrong or the stream is unknown.
"""

from __future__ import annotations

import os
import sys
import threading
from argparse import ArgumentTypeError, Namespace
from typing import TYPE_CHECKING, Any

from ematix_flow.cli.declared import add_module, prints_on_stderr
from ematix_flow.cli.declared_stream import add_stream, declared_stream, stream_names
from ematix_flow.cli.run_log_options import add_run_log, run_log_for_writing
from ematix_flow.cli.spark_options import add_spark_place, spark_place
from ematix_flow.errors import FlowError, UnknownName

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console
    from ematix_flow.cli.parser import CommandParser

_FAILED, _WRONG = 1, 2


def configure(parser: CommandParser) -> None:
    """Both commands: the list needs only a module."""
    if parser.prog.endswith("consume-list"):
        add_module(parser)
        parser.say(
            example="flow consume-list --module my_streams\nflow consume-list --module my_streams --format json",
            then="flow consume --module my_streams NAME",
        )
        return
    add_stream(parser)
    parser.add_argument("--all", action="store_true", help="every stream of the module, each in a process of its own")
    parser.add_argument(
        "--drain", "--once", dest="drain", action="store_true", help="process what is there now, then stop"
    )
    parser.add_argument("--max-batches", type=_positive, metavar="N", help="stop after so many batches")
    parser.add_argument(
        "--metrics-port", type=_port, metavar="P", help="Prometheus metrics on 127.0.0.1:P; with --all also P+1, P+2, …"
    )
    parser.add_argument(
        "--stalled-after-secs",
        type=_positive,
        default=120,
        metavar="N",
        help="warn when messages wait and no batch has ended for so long (default 120)",
    )
    _add_restarts(parser)
    parser.add_argument("--stop-at-eof", action="store_true", help="stop when stdin ends; --all starts its streams so")
    parser.add_argument("--lineage", metavar="URL", help="OpenLineage events: file:///path.jsonl, http://host:port")
    add_spark_place(parser)
    add_run_log(parser, may_be_off=True)
    parser.say(
        "SIGTERM and Ctrl-C let the running batch finish; nothing is lost and nothing comes twice.",
        "exit codes: 0 stopped or drained, 1 it could not start or go on, 2 the command line is wrong",
        example="flow consume pipeline.toml --metrics-port 9400 --restart-on-error\n"
        "flow consume --module my_streams orders_to_warehouse --drain\n"
        "flow consume --module my_streams --all",
        then="flow runs list   shows what streams have done, flow state inspect what one remembers",
    )


def _add_restarts(parser: CommandParser) -> None:
    group = parser.add_argument_group("restarts", "in the same process, with the Spark session that is there")
    group.add_argument("--restart-on-error", action="store_true", help="start again after a failure")
    group.add_argument(
        *("--initial-backoff-ms", "--min-backoff-ms"),
        dest="initial_backoff_ms",
        type=_whole,
        default=1_000,
        metavar="MS",
        help="how long to wait first; twice as long each further time (default 1000)",
    )
    group.add_argument(
        "--max-backoff-ms", type=_whole, default=60_000, metavar="MS", help="longest wait (default 60000)"
    )
    group.add_argument(
        "--max-restarts", type=_whole, metavar="N", help="give up after so many in a row (default never)"
    )
    group.add_argument(
        "--reset-backoff-after-secs",
        type=_whole,
        default=60,
        metavar="N",
        help="a start that lasted so long counts as a good one (default 60)",
    )


def run(args: Namespace, console: Console) -> int:
    """Consume; config errors end it before Java is started."""
    if args.command == "consume-list":
        return _list(args, console)
    if args.all and (args.module is None or args.name is not None):
        console.error("--all goes with --module M, and without a name.")
        return _WRONG
    from ematix_flow.run.streams import stopping_on_signals

    told = threading.Event()
    try:
        with stopping_on_signals(told):
            if args.all:
                from ematix_flow.cli.consume_all import consume_all

                return consume_all(stream_names(args.module), args, console, told)
            result = _consumed(args, console, told)
    except FlowError as exc:
        if args.debug:
            from ematix_flow.cli.main import show_traceback

            show_traceback()
        console.error(exc)
        return _WRONG if isinstance(exc, UnknownName) else _FAILED
    console.json(result)
    return 0


def _consumed(args: Namespace, console: Console, told: threading.Event) -> dict[str, Any]:
    from ematix_flow.cli.stream_display import StreamDisplay
    from ematix_flow.config.secrets import expand_field
    from ematix_flow.run.runlogs.open import use_run_log
    from ematix_flow.run.stream_watch import StreamWatch
    from ematix_flow.run.streams import run_stream
    from ematix_flow.run.supervisor import RestartPolicy
    from ematix_flow.watch.openlineage import use_lineage

    if args.stop_at_eof:
        threading.Thread(target=_stop_at_eof, args=(told,), name="stdin", daemon=True).start()
    spec = declared_stream(args, console)
    restarts = RestartPolicy(
        on_error=args.restart_on_error,
        initial_backoff_ms=args.initial_backoff_ms,
        max_backoff_ms=args.max_backoff_ms,
        max_restarts=args.max_restarts,
        reset_after_s=args.reset_backoff_after_secs,
    )
    watch = StreamWatch(spec.name, stalled_after_s=args.stalled_after_secs)
    with (
        spark_place(args),
        use_lineage(args.lineage and expand_field(args.lineage)),
        run_log_for_writing(args, console) as history,
        use_run_log(history),
        prints_on_stderr(),
        StreamDisplay(console, watch),
    ):
        return run_stream(
            spec,
            metrics_port=args.metrics_port,
            once=args.drain,
            max_batches=args.max_batches,
            stop=told,
            restarts=restarts,
            watch=watch,
        )


def _list(args: Namespace, console: Console) -> int:
    names = stream_names(args.module)
    if console.is_json:
        console.json({"pipelines": names})
    else:
        for name in names:
            console.line(name)
    return 0


def _stop_at_eof(told: threading.Event) -> None:
    """Whoever started us holds the other end: when it is gone, however it went, we stop in order."""
    # Not through sys.stdin: Python cannot end while a thread waits there.
    while os.read(sys.stdin.fileno(), 1024):
        pass
    told.set()


def _whole(text: str) -> int:
    if not text.isdigit():
        raise ArgumentTypeError(f"'{text}' is not a whole number")
    return int(text)


def _positive(text: str) -> int:
    if _whole(text) < 1:
        raise ArgumentTypeError(f"'{text}' is not a number above zero")
    return int(text)


def _port(text: str) -> int:
    if _whole(text) > 65_535:
        raise ArgumentTypeError(f"'{text}' is no port")
    return int(text)
