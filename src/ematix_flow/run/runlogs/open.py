"""Which run log is meant, and opening it softly: a store that cannot be opened is one warning, never the end of a run.

First match wins: what the caller chose (`--run-log`, `--run-log-url`, `--run-log-path`), `EMATIX_FLOW_RUN_LOG_URL`,
`EMATIX_FLOW_RUN_LOG_PATH`, `run_log` in the project's file, `~/.ematix-flow/run_log.db`.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ematix_flow.config.project import project_settings
from ematix_flow.config.secrets import expand_field
from ematix_flow.contracts.orchestration import RunLog
from ematix_flow.contracts.runtime import RunHistory
from ematix_flow.declare.redaction import display_url, scrub
from ematix_flow.errors import FlowError
from ematix_flow.run.runlogs.urls import from_url

log = logging.getLogger(__name__)

DEFAULT_PATH = "~/.ematix-flow/run_log.db"
URL_VARIABLE = "EMATIX_FLOW_RUN_LOG_URL"
PATH_VARIABLE = "EMATIX_FLOW_RUN_LOG_PATH"


def run_log_url(chosen: str | None = None) -> str:
    """The URL or path of the run log that is meant, every `${…}` filled in.

    Raises:
        ConfigError: The project's file cannot be read, or a reference cannot be filled in.
    """
    return expand_field(written_run_log(chosen))


def written_run_log(chosen: str | None = None) -> str:
    """The same as somebody wrote it: what is handed to another process, which fills it in itself.

    Raises:
        ConfigError: The project's file cannot be read.
    """
    told = chosen or os.environ.get(URL_VARIABLE) or os.environ.get(PATH_VARIABLE)
    return told or project_settings().run_log or DEFAULT_PATH


def open_run_log(url: str | None = None, *, warn: Callable[[str], None] | None = None) -> RunLog | None:
    """The run log that is meant, or None after one warning when it cannot be had; work goes on without history then.

    Args:
        url: what the caller chose; without it the environment and then the default path decide.
        warn: takes the one line; by default it is logged as a warning.
    """
    meant = url
    try:
        meant = run_log_url(url)
        return from_url(meant)
    except Exception as exc:  # whatever a store raises, a run must not die of it
        (warn or _log_warning)(_reason(exc, meant))
        return None


def _reason(exc: Exception, meant: str | None) -> str:
    """One line: what is missing, why, and which store it was, without its password."""
    words = exc.message if isinstance(exc, FlowError) else f"{type(exc).__name__}: {exc}"
    fix = f" ({exc.fix})" if isinstance(exc, FlowError) and exc.fix else ""
    place = f" [{display_url(meant)}]" if meant else ""
    return scrub(" ".join(f"no run history: {words}{fix}{place}".split()))


def _log_warning(line: str) -> None:
    log.warning("%s", line)


_lock = threading.Lock()
_chosen: list[RunHistory | None] = []
_defaults: dict[str, RunHistory | None] = {}


def current_run_log() -> RunHistory | None:
    """The run log that runs of this process are recorded in: the one chosen with `use_run_log`, else the default one.

    The default is opened at the first question and kept, so that a store that cannot be opened is one warning.
    """
    with _lock:
        if _chosen:
            return _chosen[-1]
        meant = _default_key()
        if meant not in _defaults:
            _defaults[meant] = open_run_log(meant or None)
        return _defaults[meant]


def _default_key() -> str:
    """The default as of now: the environment, the home or the working directory may have changed."""
    try:
        return os.path.abspath(os.path.expanduser(url)) if "://" not in (url := run_log_url()) else url
    except FlowError:
        return ""  # asked again, and warned of, by `open_run_log`


@contextmanager
def use_run_log(history: RunHistory | None) -> Iterator[None]:
    """Record every run inside the block in this run log, or nowhere. Blocks may be nested, not interleaved."""
    with _lock:
        _chosen.append(history)
    try:
        yield
    finally:
        with _lock:
            _chosen.pop()
