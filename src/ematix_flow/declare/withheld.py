"""What lies behind an error of ours, without the words of drivers: they quote the value that they could not take.

Errors of ours say what happened without values of rows. What caused one stays beside it with its type and its stack,
for whoever mends the fault. Of its words those stay that our error says too; all of them where the environment asks.
"""

from __future__ import annotations

import os

from ematix_flow.errors import FlowError

SHOWN_BY = "EMATIX_FLOW_SHOW_VALUES"
"""Set to 1 where values of rows may be seen: causes then keep all of their words."""
HOW_TO_SEE = f"{SHOWN_BY}=1 and --debug show its own report, values of rows included"
_NOT_SHOWN = f"(what it said may quote values of rows; {SHOWN_BY}=1 shows it)"


class Withheld(Exception):
    """Stands for an exception that is not ours: its type and its stack, and no word that may be a value of a row."""


def without_values(exc: BaseException) -> BaseException:
    """The same error, with causes that quote nothing which the errors of ours among them do not say."""
    exc.__cause__ = cause_without_values(exc)
    return exc


def cause_without_values(exc: BaseException) -> BaseException | None:
    """What caused an error, and what caused that: each as it is, or a `Withheld` in its place."""
    if os.environ.get(SHOWN_BY) == "1":
        return _cause(exc)
    said, seen = str(exc), {id(exc)}
    last, head = exc, None
    cause = _cause(exc)
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        behind = _cause(cause)
        shown = cause if isinstance(cause, FlowError | Withheld) or str(cause) in said else _stand_in(cause, said)
        if isinstance(cause, FlowError):
            said += str(cause)
        if head is None:
            head = shown
        else:
            last.__cause__ = shown
        last, cause = shown, behind
    if last is not exc:
        last.__cause__ = None
    return head


def _cause(exc: BaseException) -> BaseException | None:
    return exc.__cause__ or (None if exc.__suppress_context__ else exc.__context__)


def _stand_in(exc: BaseException, said: str) -> Withheld:
    kind = f"{type(exc).__module__}.{type(exc).__qualname__}".removeprefix("builtins.")
    first = str(exc).partition("\n")[0]
    words = first if first in said else _NOT_SHOWN
    return Withheld(f"{kind}: {words}").with_traceback(exc.__traceback__)
