"""Functions and aggregates of one's own for `transform_sql`, written in Python over Arrow arrays.

`@udf` and `@udaf` turn a function or a class into a handle that knows its name and types. The handles are what streams
register; `apply_udf_to_batch` and `apply_udaf_to_batch` try them on one record batch, in a notebook or a test. Whatever
the user's code returns is held against the declared types, and an error names the function and the method.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ematix_flow.declare.registry import SourceLocation, function_location, user_location
from ematix_flow.errors import (
    FlowError,
    InvalidDeclaration,
    InvalidPlan,
    MissingDriver,
    UdfFailed,
    UnknownColumn,
    WrongDeclarationType,
    closest,
    listed,
)

if TYPE_CHECKING:
    import pyarrow as pa

ARROW_NAMES = {
    "Int8": "int8",
    "Int16": "int16",
    "Int32": "int32",
    "Int64": "int64",
    "UInt8": "uint8",
    "UInt16": "uint16",
    "UInt32": "uint32",
    "UInt64": "uint64",
    "Float32": "float32",
    "Float64": "float64",
    "Boolean": "bool_",
    "Utf8": "string",
    "Binary": "binary",
}
"""The types a UDF may declare → the function of pyarrow that makes them."""

_SPELLINGS = {name.lower(): name for name in ARROW_NAMES} | {"bool": "Boolean", "string": "Utf8"}
_NUMBER = re.compile(r"(?P<family>U?Int|Float)(?P<bits>\d+)")
_METHODS = ("update_batch", "merge_batch", "evaluate", "state")

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class PythonScalarUdfHandle:
    """A function over columns: one Arrow array per argument in, one array of the same length out. Made by `@udf`."""

    name: str
    args: tuple[str, ...]
    returns: str
    function: Callable[..., Any]
    where: SourceLocation

    def __call__(self, *arrays: pa.Array) -> pa.Array:
        """The function's answer for arrays that are first brought to the declared types.

        Raises:
            InvalidPlan: (a ValueError) too many or too few arguments, or one whose type does not fit.
            UdfFailed: (a ValueError) the function raised, or gave something other than declared.
        """
        given = _fitted_arguments(self, f"UDF '{self.name}'", self.args, arrays)
        answer = _guarded(self, f"UDF '{self.name}'", lambda: self.function(*given))
        return _checked_array(self, f"UDF '{self.name}'", answer, self.returns, length=len(given[0]))


@dataclass(frozen=True)
class PythonAggregateUdfHandle:
    """An aggregate: a class of which every group gets an instance. Made by `@udaf`."""

    name: str
    args: tuple[str, ...]
    state: tuple[str, ...]
    returns: str
    accumulator_class: type[Any]
    where: SourceLocation

    def accumulator(self) -> Accumulator:
        """A fresh instance for one group, behind the checks."""
        return Accumulator(self)


class Accumulator:
    """One group's instance of an aggregate class; every call is checked against the declared types.

    Rows arrive by `update_batch`, states of other instances by `merge_batch`, both any number of times in any order.
    """

    def __init__(self, handle: PythonAggregateUdfHandle) -> None:
        self._handle = handle
        self._inner: Any = _guarded(handle, self._method("__init__"), handle.accumulator_class)

    def update_batch(self, *arrays: pa.Array) -> None:
        """Take in rows: one array per declared argument."""
        method = self._method("update_batch")
        given = _fitted_arguments(self._handle, method, self._handle.args, arrays)
        _guarded(self._handle, method, lambda: self._inner.update_batch(*given))

    def merge_batch(self, *states: pa.Array) -> None:
        """Take in the states of other instances: one array per declared state column, one element per instance."""
        method = self._method("merge_batch")
        given = _fitted_arguments(self._handle, method, self._handle.state, states)
        _guarded(self._handle, method, lambda: self._inner.merge_batch(*given))

    def evaluate(self) -> pa.Array:
        """The result, as an array of length 1."""
        method = self._method("evaluate")
        answer = _guarded(self._handle, method, self._inner.evaluate)
        return _checked_array(self._handle, method, answer, self._handle.returns, length=1)

    def state(self) -> tuple[pa.Array, ...]:
        """What another instance needs to go on from here: arrays of length 1."""
        method = self._method("state")
        answer = _guarded(self._handle, method, self._inner.state)
        wanted = self._handle.state
        if not isinstance(answer, tuple | list) or len(answer) != len(wanted):
            given = f"{len(answer)} arrays" if isinstance(answer, tuple | list) else type(answer).__name__
            raise _failed(self._handle, f"{method} returned {given}; declared are {len(wanted)} state columns.")
        return tuple(
            _checked_array(self._handle, method, part, type_name, length=1)
            for part, type_name in zip(answer, wanted, strict=True)
        )

    def _method(self, name: str) -> str:
        return f"UDAF '{self._handle.name}': {name}()"


def udf(
    *, args: Sequence[str], returns: str, name: str | None = None
) -> Callable[[Callable[..., Any]], PythonScalarUdfHandle]:
    """Declare a function for `transform_sql`: `@udf(args=("Float64",), returns="Float64")`.

    Args:
        args: Type of each argument; the function gets one Arrow array for each.
        returns: Type of the array it returns, which is as long as those it got.
        name: What SQL calls it; the function's own name unless told otherwise.

    Raises:
        InvalidDeclaration: (a ValueError) an unknown type, no argument, or a function that does not take that many.
        WrongDeclarationType: (a TypeError) what is decorated cannot be called.
    """
    arg_types = _type_names("args", args)
    return_type = _type_name("returns", returns)

    def declare(function: Callable[..., Any]) -> PythonScalarUdfHandle:
        if not callable(function) or isinstance(function, type):
            raise WrongDeclarationType("@udf decorates a function.", fix="use @udaf for an aggregate class")
        chosen = _chosen_name(name, function)
        where = function_location(function)
        _check_arity(f"UDF '{chosen}'", function, len(arg_types), where)
        return PythonScalarUdfHandle(chosen, arg_types, return_type, function, where)

    return declare


def udaf(
    *, args: Sequence[str], state: Sequence[str], returns: str, name: str | None = None
) -> Callable[[type[Any]], PythonAggregateUdfHandle]:
    """Declare an aggregate for `transform_sql`: a class with `update_batch`, `merge_batch`, `evaluate` and `state`.

    Args:
        args: Type of each argument of `update_batch`.
        state: Type of each array of `state()`, which are the arguments of `merge_batch`.
        returns: Type of the array of length 1 that `evaluate()` returns.
        name: What SQL calls it; the class's own name unless told otherwise.

    Raises:
        InvalidDeclaration: (a ValueError) an unknown type, no argument or state, or methods that do not take that many.
        WrongDeclarationType: (a TypeError) not a class, or a method is missing.
    """
    arg_types = _type_names("args", args)
    state_types = _type_names("state", state)
    return_type = _type_name("returns", returns)

    def declare(cls: type[Any]) -> PythonAggregateUdfHandle:
        if not isinstance(cls, type):
            raise WrongDeclarationType("@udaf decorates a class.", fix="use @udf for a function")
        chosen = _chosen_name(name, cls)
        missing = [method for method in _METHODS if not callable(getattr(cls, method, None))]
        if missing:
            raise WrongDeclarationType(
                f"UDAF '{chosen}': class '{cls.__name__}' has no {listed(missing)}.",
                fix=f"an aggregate needs the methods {listed(_METHODS)}",
            )
        where = user_location(cls.__qualname__)
        arguments = {"__init__": 0, "update_batch": len(arg_types), "merge_batch": len(state_types)}
        for method, count in {**arguments, "evaluate": 0, "state": 0}.items():
            _check_arity(f"UDAF '{chosen}': {method}()", getattr(cls, method), count + 1, where, is_method=True)
        return PythonAggregateUdfHandle(chosen, arg_types, state_types, return_type, cls, where)

    return declare


def apply_udf_to_batch(
    handle: PythonScalarUdfHandle,
    record_batch: pa.RecordBatch,
    arg_columns: Sequence[str],
    *,
    output_column: str = "result",
) -> pa.Array:
    """Call a UDF on columns of one record batch and return the array it gives.

    Args:
        handle: What `@udf` made.
        record_batch: A `pyarrow.RecordBatch`.
        arg_columns: Names of the columns, one per argument, in order.
        output_column: What the result is called in a batch; the array itself carries no name.

    Raises:
        WrongDeclarationType: (a TypeError) the handle or the batch is something else.
        UnknownColumn, InvalidPlan, UdfFailed: (ValueErrors) the columns do not fit, or the function failed.
    """
    if not isinstance(handle, PythonScalarUdfHandle):
        raise WrongDeclarationType(
            f"apply_udf_to_batch takes what @udf made, not {type(handle).__name__}.",
            fix="use apply_udaf_to_batch" if isinstance(handle, PythonAggregateUdfHandle) else None,
        )
    _check_output_column(output_column)
    return handle(*_columns_of(record_batch, arg_columns))


def apply_udaf_to_batch(
    handle: PythonAggregateUdfHandle,
    record_batch: pa.RecordBatch,
    arg_columns: Sequence[str],
    *,
    output_column: str = "result",
) -> pa.Array:
    """Aggregate one whole record batch, as a single group, and return the array of length 1.

    Takes and raises the same as `apply_udf_to_batch`. States are neither asked for nor merged; use
    `handle.accumulator()` to try those.
    """
    if not isinstance(handle, PythonAggregateUdfHandle):
        raise WrongDeclarationType(
            f"apply_udaf_to_batch takes what @udaf made, not {type(handle).__name__}.",
            fix="use apply_udf_to_batch" if isinstance(handle, PythonScalarUdfHandle) else None,
        )
    _check_output_column(output_column)
    arrays = _columns_of(record_batch, arg_columns)
    group = handle.accumulator()
    group.update_batch(*arrays)
    return group.evaluate()


def check_udfs(udfs: Sequence[Any] | None, aggregate_udfs: Sequence[Any] | None) -> None:
    """Refuse what is not a handle, and a name that stands twice.

    Raises:
        WrongDeclarationType: (a TypeError) a list holds something other than what `@udf` or `@udaf` made.
        InvalidDeclaration: (a ValueError) two have the same name.
    """
    seen: set[str] = set()
    for option, handles, wanted, decorator in (
        ("udfs", udfs, PythonScalarUdfHandle, "@udf"),
        ("aggregate_udfs", aggregate_udfs, PythonAggregateUdfHandle, "@udaf"),
    ):
        for handle in handles or ():
            if not isinstance(handle, wanted):
                raise WrongDeclarationType(f"{option}= takes what {decorator} made, not {type(handle).__name__}.")
            if handle.name.lower() in seen:  # SQL does not mind the case of a function's name
                raise InvalidDeclaration(f"Two UDFs are named '{handle.name}'.", fix="give one another name=")
            seen.add(handle.name.lower())


# ── what is declared ─────────────────────────────────────────────────────────────────────────────────────────────────


def _type_name(option: str, written: object) -> str:
    if not isinstance(written, str):
        raise WrongDeclarationType(f"{option} takes names of types such as 'Float64', not {type(written).__name__}.")
    found = _SPELLINGS.get(written.strip().lower())
    if found is None:
        raise InvalidDeclaration(
            f"{option}: '{written}' is not a type a UDF can have.",
            fix=closest(written, ARROW_NAMES) or f"known are {listed(ARROW_NAMES)}",
        )
    return found


def _type_names(option: str, written: Sequence[str]) -> tuple[str, ...]:
    if isinstance(written, str) or not isinstance(written, Sequence):
        raise WrongDeclarationType(
            f"{option} takes a tuple of type names, not {written!r}.", fix=f'write {option}=("Float64",)'
        )
    if not written:
        # Without an array in, nothing tells how long the array out must be.
        raise InvalidDeclaration(f"{option} is empty.", fix="declare at least one type")
    return tuple(_type_name(option, name) for name in written)


def _chosen_name(name: str | None, decorated: Any) -> str:
    chosen = decorated.__name__ if name is None and hasattr(decorated, "__name__") else name
    if not isinstance(chosen, str) or not chosen.strip():
        raise InvalidDeclaration("A UDF needs a name.", fix="pass name='…'")
    return chosen


def _check_arity(
    what: str, function: Callable[..., Any], count: int, where: SourceLocation, *, is_method: bool = False
) -> None:
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # things written in C, such as NumPy's functions, tell nothing
        return
    try:
        signature.bind(*range(count))
    except TypeError:
        declared = count - 1 if is_method else count
        raise InvalidDeclaration(
            f"{what} cannot be called with {declared} {'argument' if declared == 1 else 'arguments'}, as declared.",
            where=str(where),
        ) from None


# ── what goes in and comes out ───────────────────────────────────────────────────────────────────────────────────────


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError as exc:
        raise MissingDriver("UDFs need 'pyarrow'.", fix='pip install "ematix-flow[df]"') from exc
    return pyarrow


def _check_output_column(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidDeclaration("output_column must be a name.")


def _columns_of(record_batch: Any, arg_columns: Sequence[str]) -> list[Any]:
    if not isinstance(record_batch, _pyarrow().RecordBatch):
        raise WrongDeclarationType(f"A pyarrow.RecordBatch is needed, not {type(record_batch).__name__}.")
    if isinstance(arg_columns, str):
        raise WrongDeclarationType("arg_columns takes a list of column names.", fix=f"write [{arg_columns!r}]")
    known = record_batch.schema.names
    for name in arg_columns:
        if known.count(name) != 1:
            problem = f"has no column '{name}'" if name not in known else f"has '{name}' more than once"
            raise UnknownColumn(
                f"The batch {problem}.", fix=closest(str(name), known) or f"its columns: {listed(known)}"
            )
    return [record_batch.column(name) for name in arg_columns]


def _fitted_arguments(handle: Any, what: str, wanted: tuple[str, ...], arrays: Sequence[Any]) -> list[Any]:
    if len(arrays) != len(wanted):
        raise InvalidPlan(f"{what} takes {len(wanted)} arguments, not {len(arrays)}.", where=str(handle.where))
    return [
        _fitted(handle, f"{what}: argument {number}", array, type_name)
        for number, (array, type_name) in enumerate(zip(arrays, wanted, strict=True), start=1)
    ]


def _fitted(handle: Any, what: str, array: Any, type_name: str) -> Any:
    """The array in the declared type, when every value of its own type has a place there."""
    pyarrow = _pyarrow()
    if not isinstance(array, pyarrow.Array):
        raise InvalidPlan(f"{what} is not an Arrow array but {type(array).__name__}.", where=str(handle.where))
    wanted = getattr(pyarrow, ARROW_NAMES[type_name])()
    if array.type == wanted:
        return array
    if pyarrow.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not (pyarrow.types.is_null(array.type) or widens(_own_name(array.type), type_name)):
        raise InvalidPlan(
            f"{what} is declared {type_name} and gets {array.type}.",
            where=str(handle.where),
            fix=f"cast it to {type_name} in the SQL",
        )
    # Not "safe": Int64 → Float64 is allowed by rule, though the largest numbers lose their last digits.
    return array.cast(wanted, safe=False)


def _own_name(arrow_type: Any) -> str | None:
    """Our name of an Arrow type; the large and view forms of text and bytes count as the plain one."""
    text = str(arrow_type).removeprefix("large_").removesuffix("_view")
    return {"float": "Float32", "double": "Float64"}.get(text) or _SPELLINGS.get(text)


def widens(given: str | None, wanted: str) -> bool:
    """Whether any value of one type may stand for the other without a decision by the user.

    >>> widens("Int64", "Float64"), widens("UInt32", "Int64"), widens("Int64", "Int32"), widens("Utf8", "Float64")
    (True, True, False, False)
    """
    if given is None or given == wanted:
        return given is not None
    number, wanted_number = _NUMBER.fullmatch(given), _NUMBER.fullmatch(wanted)
    if number is None or wanted_number is None:
        return False
    family, bits = number["family"], int(number["bits"])
    wanted_family, wanted_bits = wanted_number["family"], int(wanted_number["bits"])
    if family == wanted_family:
        return bits <= wanted_bits
    if wanted_family == "Float":
        return wanted_bits == 64 or bits <= 16
    return family == "UInt" and wanted_family == "Int" and bits < wanted_bits


def _checked_array(handle: Any, what: str, answer: Any, type_name: str, *, length: int) -> Any:
    pyarrow = _pyarrow()
    if not isinstance(answer, pyarrow.Array):
        raise _failed(handle, f"{what} returned {type(answer).__name__}, not an Arrow array.")
    if len(answer) != length:
        raise _failed(handle, f"{what} returned a length-{len(answer)} array; {length} is expected.")
    wanted = getattr(pyarrow, ARROW_NAMES[type_name])()
    if answer.type != wanted:
        raise _failed(
            handle,
            f"{what} returned an array of type {answer.type}; declared is {type_name}.",
            fix=f"give pa.array(…, type=pa.{ARROW_NAMES[type_name]}())",
        )
    return answer


def _guarded(handle: Any, what: str, call: Callable[[], _Result]) -> _Result:
    try:
        return call()
    except FlowError:
        raise
    except Exception as exc:
        # The text of the user's exception may hold a row's value; it stays in the chain, for the one who debugs.
        raise _failed(handle, f"{what} raised {type(exc).__name__}.") from exc


def _failed(handle: Any, message: str, *, fix: str | None = None) -> UdfFailed:
    return UdfFailed(message, where=str(handle.where), fix=fix)
