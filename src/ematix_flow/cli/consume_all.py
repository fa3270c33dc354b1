"""`flow consume --all`: every stream of a module, each in a process of its own.

A stream that ends, well or badly, leaves the others running. All of them are told to stop when this process is, and
stop in order by themselves when it is gone: they watch the pipe between us.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from argparse import Namespace
from typing import IO, TYPE_CHECKING, Any

from ematix_flow.errors import UnknownName

if TYPE_CHECKING:
    from ematix_flow.cli.console import Console

_LOOK_EVERY_S = 0.2


def consume_all(names: list[str], args: Namespace, console: Console, told: threading.Event) -> int:
    """Run them until all have ended; the exit code is 1 when one of them failed.

    Raises:
        UnknownName: the module declares no stream.
    """
    if not names:
        raise UnknownName(f"Module '{args.module}' declares no stream.", fix="@ematix.streaming_pipeline(...)")
    running = [_Child(name, _command(name, number, args), console) for number, name in enumerate(names)]
    while any(child.process.poll() is None for child in running) and not told.wait(_LOOK_EVERY_S):
        pass
    for child in running:
        child.stop()
    results = {child.name: child.result() for child in running}
    console.json({"pipelines": results})
    return 1 if any(child.process.returncode for child in running) else 0


class _Child:
    """One stream in a process of its own."""

    def __init__(self, name: str, command: list[str], console: Console) -> None:
        self.name = name
        self._console = console
        self._last_line = ""
        # A session of its own: Ctrl-C reaches us alone, and we pass it on.
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=sys.platform != "win32",
        )
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, False), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stderr, True), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, lines: IO[str] | None, is_story: bool) -> None:
        for line in lines or ():
            if is_story:
                self._console.note(f"{self.name}: {line.rstrip()}")
            elif line.strip():
                self._last_line = line

    def stop(self) -> None:
        """Let it finish its batch."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def result(self) -> dict[str, Any]:
        """What it said at its end; its exit code when it said nothing."""
        self.process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        try:
            told = json.loads(self._last_line)
        except ValueError:
            told = None
        return told if isinstance(told, dict) else {"exit_code": self.process.returncode}


def _command(name: str, number: int, args: Namespace) -> list[str]:
    """The same command for one stream."""
    words = [sys.executable, "-m", "ematix_flow", "consume", "--module", args.module, name, "--stop-at-eof"]
    if args.metrics_port is not None:
        words += ["--metrics-port", str(args.metrics_port + number if args.metrics_port else 0)]
    if args.checkpoint is not None:
        words += ["--checkpoint", f"{args.checkpoint}/{name}"]
    for option in (
        *("max_batches", "stalled_after_secs", "initial_backoff_ms", "max_backoff_ms", "max_restarts"),
        *("reset_backoff_after_secs", "spark_master", "spark_remote", "run_log_url", "run_log_path", "lineage"),
    ):
        if getattr(args, option) is not None:
            words += [f"--{option.replace('_', '-')}", str(getattr(args, option))]
    switches = ("drain", "restart_on_error", "no_run_log", "debug", "json", "no_color")
    return words + [f"--{option.replace('_', '-')}" for option in switches if getattr(args, option)]
