"""Every error this project raises, in one tree.

::

    FlowError
    ├── DeclarationError   the code the user wrote
    ├── ConfigError        what we were told: files, environment, options
    ├── PlanError          what cannot be done
    ├── BackendError       the other system said no
    ├── RunError           it broke while running
    └── StreamError        it broke while streaming

Catch families, raise leaves. Every leaf says what happened, where, and how to mend it; facts are attributes, so nobody
parses text. Leaves also inherit the built-in class that the documented surface promises (`ValueError`, `KeyError`, …);
some inherit two, where batches promise one (`RuntimeError`) and streams another: there every mistake is a `ValueError`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import ClassVar


def closest(name: str, known: Iterable[str]) -> str | None:
    """The hint "did you mean …?" for a mistyped name, or None when nothing is near.

    >>> closest("warehous", ["warehouse", "lake"])
    "did you mean 'warehouse'?"
    """
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean '{found[0]}'?" if found else None


def listed(names: Iterable[str]) -> str:
    """Names for a message, quoted and joined; "none" when there are none."""
    return ", ".join(f"'{name}'" for name in names) or "none"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: `1 row`, `1,204 rows`.

    >>> counted(1, "row"), counted(1204, "row"), counted(2, "key has", "keys have")
    ('1 row', '1,204 rows', '2 keys have')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


class FlowError(Exception):
    """The root. `where`, `tried` and `fix` become lines below the message."""

    code: ClassVar[str] = "FLOW000"
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        tried: Sequence[str] = (),
        fix: str | None = None,
    ) -> None:
        self.message = message
        self.where = where
        self.tried = tuple(tried)
        self.fix = fix
        super().__init__(message)

    def __str__(self) -> str:
        lines = [f"{self.message} [{self.code}]"]
        if self.where:
            lines.append(f"  at     {self.where}")
        if self.tried:
            lines.append(f"  tried  {' · '.join(self.tried)}")
        if self.fix:
            lines.append(f"  fix    {self.fix}")
        return "\n".join(lines)

    def at(self, where: str) -> FlowError:
        """The same error with a place, unless it already has one."""
        self.where = self.where or where
        return self


# ── what the user wrote ──────────────────────────────────────────────────────────────────────────────────────────────


class DeclarationError(FlowError):
    """The code that declares connections, tables or pipelines is wrong."""

    code = "FLOW100"


class InvalidDeclaration(DeclarationError, ValueError):
    """A declared value is out of its range or contradicts another."""

    code = "FLOW101"


class WrongDeclarationType(DeclarationError, TypeError):
    """A declaration has the wrong type or shape."""

    code = "FLOW102"


class DuplicateName(DeclarationError, ValueError):
    """Two places declare the same name."""

    code = "FLOW103"


class MissingKeys(DeclarationError, ValueError):
    """`merge` and `scd2` need keys and none are known."""

    code = "FLOW104"


class UnknownColumn(DeclarationError, ValueError):
    """An option names a column that the table does not declare."""

    code = "FLOW105"


# ── what we were told ────────────────────────────────────────────────────────────────────────────────────────────────


class ConfigError(FlowError):
    """Configuration, environment or command-line input is wrong."""

    code = "FLOW200"


class UnknownConnection(ConfigError, LookupError, ValueError):
    """A pipeline names a connection that no source of configuration knows."""

    code = "FLOW201"


class UnregisteredConnection(ConfigError, KeyError):
    """`get_connection` was asked for a name that no code registered."""

    code = "FLOW202"

    __str__ = FlowError.__str__


class InvalidConnection(ConfigError, ValueError):
    """A connection misses a field or holds one that cannot be."""

    code = "FLOW203"


class WrongConnectionType(ConfigError, TypeError):
    """Something that is not a connection was given where one belongs."""

    code = "FLOW204"


class MissingSecret(ConfigError, KeyError):
    """A `${…}` reference could not be resolved."""

    code = "FLOW205"

    __str__ = FlowError.__str__


class InvalidConfig(ConfigError, ValueError):
    """A configuration file or option cannot be read."""

    code = "FLOW206"


class UnknownName(ConfigError, KeyError):
    """No pipeline, transform or run has this name."""

    code = "FLOW207"

    __str__ = FlowError.__str__


class ModuleNotLoaded(ConfigError, ImportError):
    """The module given with --module could not be imported."""

    code = "FLOW208"


# ── what cannot be done ──────────────────────────────────────────────────────────────────────────────────────────────


class PlanError(FlowError):
    """The declared load cannot be planned."""

    code = "FLOW300"


class InvalidPlan(PlanError, ValueError):
    """Options that cannot go together, found while planning."""

    code = "FLOW301"


class UnsupportedMode(PlanError, NotImplementedError, ValueError):
    """The target cannot do this mode, or not this part of it."""

    code = "FLOW302"


class RouteImpossible(PlanError, ValueError):
    """`engine=` or `force_path=` asks for a route that this load cannot take."""

    code = "FLOW303"


class IncompatibleSchema(PlanError, ValueError):
    """The live table differs from the declared one in a way that may not be mended automatically."""

    code = "FLOW304"


class MissingSourceColumn(PlanError, ValueError):
    """The source does not deliver a column that the target declares."""

    code = "FLOW305"


class UnsupportedBackend(PlanError, NotImplementedError, ValueError):
    """The connection's backend is not part of this version, or cannot play this role."""

    code = "FLOW306"


class InvalidSource(PlanError, RuntimeError, ValueError):
    """What a pipeline is to read cannot be: wrong SQL, damaged files, a function that gave nothing."""

    code = "FLOW307"


class WrongSourceType(PlanError, TypeError):
    """The pipeline function returned something that is not a source."""

    code = "FLOW308"


# ── the other system said no ─────────────────────────────────────────────────────────────────────────────────────────


class BackendError(FlowError):
    """An external system refused, or is not there."""

    code = "FLOW400"


class ConnectionFailed(BackendError, ValueError):
    """The server cannot be reached or refuses the credentials."""

    code = "FLOW401"
    retryable = True


class MissingDriver(BackendError, ImportError):
    """A Python package that a backend needs is not installed."""

    code = "FLOW402"


class MissingJar(BackendError):
    """A connector jar is neither cached nor to be fetched."""

    code = "FLOW403"


class MissingJava(BackendError):
    """No usable Java runtime was found."""

    code = "FLOW404"


class WriteConflict(BackendError, ValueError):
    """Another writer changed what this load was planned on."""

    code = "FLOW405"
    retryable = True


class TakenOver(WriteConflict):
    """A later run of the same pipeline has taken its place; begun again, this one would only end that one in turn."""

    code = "FLOW410"
    retryable = False


class StatementFailed(BackendError, ValueError):
    """The database refused a statement for a reason of its own."""

    code = "FLOW406"


class UnfitValue(BackendError, ValueError):
    """A value does not fit its declared column."""

    code = "FLOW407"


class InvalidIdentifier(BackendError, ValueError):
    """A name that the target system cannot hold."""

    code = "FLOW408"


class BrokerRefused(StatementFailed):
    """A message broker or a schema registry refused a request for a reason of its own."""

    code = "FLOW409"


# ── it broke while running ───────────────────────────────────────────────────────────────────────────────────────────


class RunError(FlowError):
    """A run started and could not finish."""

    code = "FLOW500"


class StepFailed(RunError, RuntimeError):
    """The user's own function or transform raised."""

    code = "FLOW501"


class AlreadyRunning(RunError, RuntimeError, ValueError):
    """Another run of the same pipeline is under way; this one changed nothing."""

    code = "FLOW502"
    retryable = True


class DuplicateKeys(RunError, ValueError):
    """The source holds the same key more than once."""

    code = "FLOW503"


class EmptySource(RunError, ValueError):
    """An empty source together with hard deletes would empty the target."""

    code = "FLOW504"


class LateArrival(RunError, ValueError):
    """`late_arrivals="error"` and an event is older than what is stored."""

    code = "FLOW505"


class EngineFailed(RunError, RuntimeError, ValueError):
    """Spark gave up for a reason that has no clearer name."""

    code = "FLOW506"


class UdfFailed(RunError, ValueError):
    """A user's `@udf` or `@udaf` raised, or returned something other than declared."""

    code = "FLOW507"


class WarehouseSyncError(RunError, RuntimeError):
    """Rows could not be moved from one warehouse to another."""

    code = "FLOW508"


class PortTaken(RunError, ValueError):
    """Metrics were to be served on a port that cannot be had."""

    code = "FLOW509"


class DispatchError(RunError, RuntimeError):
    """A claimed pipeline could not be handed to where it was to run; nothing of it has begun."""

    code = "FLOW510"
    retryable = True


class NoFreeWorker(DispatchError):
    """Every warm worker is busy, or not up yet; the pipeline waits for its next turn."""

    code = "FLOW511"


class StaleLease(RunError, RuntimeError):
    """The run's claim belongs to somebody else by now: what it did is not committed."""

    code = "FLOW512"


class RunCancelled(RunError, RuntimeError):
    """Somebody asked the run to stop; it did so before its next step, or before its rows became visible."""

    code = "FLOW513"


# ── it broke while streaming ─────────────────────────────────────────────────────────────────────────────────────────


class StreamError(FlowError):
    """A stream started and could not go on."""

    code = "FLOW600"


class StateIncompatible(StreamError, ValueError):
    """What a stream remembers does not fit what it is now, or what its target holds."""

    code = "FLOW601"


class BadMessages(StreamError, ValueError):
    """Messages cannot be read or do not fit, and the stream was told to stop then."""

    code = "FLOW602"


class DeliveryImpossible(StreamError, ValueError):
    """`delivery="exactly_once"` cannot be kept by this source and these targets."""

    code = "FLOW603"


class LostMessages(StreamError, ValueError):
    """The broker no longer has messages that the stream has not read."""

    code = "FLOW604"


class StateTooLarge(StreamError, ValueError):
    """A window, a group or a join would have to remember more than it was allowed to."""

    code = "FLOW605"
