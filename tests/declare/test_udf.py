"""Functions and aggregates of one's own: declared types, what goes in, what may come out."""

from __future__ import annotations

import math

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ematix_flow.declare.udf import (
    ARROW_NAMES,
    PythonAggregateUdfHandle,
    PythonScalarUdfHandle,
    apply_udaf_to_batch,
    apply_udf_to_batch,
    udaf,
    udf,
)
from ematix_flow.errors import InvalidDeclaration, InvalidPlan, UdfFailed, UnknownColumn, WrongDeclarationType

BATCH = pa.record_batch(
    {
        "price": pa.array([1.0, 2.0, None], pa.float64()),
        "qty": pa.array([3, 4, 5], pa.int64()),
        "name": pa.array(["a", "b", None], pa.string()),
    }
)


@udf(args=("Float64", "Float64"), returns="Float64")
def amount(prices, quantities):
    return pc.multiply(prices, quantities)


class Vwap:
    """The documented example, undecorated, so that tests can change it."""

    def __init__(self):
        self.num = 0.0
        self.den = 0.0

    def update_batch(self, prices, quantities):
        self.num += pc.sum(pc.multiply(prices, quantities)).as_py() or 0.0
        self.den += pc.sum(quantities).as_py() or 0.0

    def merge_batch(self, num_states, den_states):
        self.num += pc.sum(num_states).as_py() or 0.0
        self.den += pc.sum(den_states).as_py() or 0.0

    def evaluate(self):
        return pa.array([self.num / self.den if self.den else None], type=pa.float64())

    def state(self):
        return pa.array([self.num], type=pa.float64()), pa.array([self.den], type=pa.float64())


declared_vwap = udaf(args=("Float64", "Float64"), state=("Float64", "Float64"), returns="Float64", name="vwap")


# ── scalar ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_udf_is_named_after_its_function_and_works_on_a_batch() -> None:
    assert isinstance(amount, PythonScalarUdfHandle)
    assert (amount.name, amount.args, amount.returns) == ("amount", ("Float64", "Float64"), "Float64")
    assert "test_udf.py" in amount.where.file
    result = apply_udf_to_batch(amount, BATCH, ["price", "qty"])
    assert result.equals(pa.array([3.0, 8.0, None], pa.float64()))
    assert udf(args=["Int64"], returns="Int64", name="same")(lambda x: x).name == "same"


@pytest.mark.parametrize("type_name", sorted(ARROW_NAMES))
def test_every_type_comes_back_as_it_went_in_in_both_spellings(type_name: str) -> None:
    arrow_type = getattr(pa, ARROW_NAMES[type_name])()
    column = pa.array([None, None], arrow_type)
    for spelling in (type_name, type_name.lower()):
        handle = udf(args=(spelling,), returns=spelling)(lambda column: column)
        result = apply_udf_to_batch(handle, pa.record_batch({"c": column}), ["c"])
        assert handle.args == (type_name,) and result.type == arrow_type


def test_bool_and_string_are_names_of_types_too() -> None:
    handle = udf(args=("string",), returns="bool")(lambda names: pc.equal(names, "a"))
    assert (handle.args, handle.returns) == (("Utf8",), "Boolean")
    assert apply_udf_to_batch(handle, BATCH, ["name"]).to_pylist() == [True, False, None]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", "b"], pa.large_string()),
        pa.array(["a", "b"], pa.string_view()),
        pa.array(["a", "b"]).dictionary_encode(),
    ],
    ids=["large", "view", "dictionary"],
)
def test_other_forms_of_text_are_text(column: pa.Array) -> None:
    handle = udf(args=("Utf8",), returns="Utf8")(lambda names: names)
    assert apply_udf_to_batch(handle, pa.record_batch({"c": column}), ["c"]).equals(pa.array(["a", "b"]))


@pytest.mark.parametrize(
    ("given", "wanted", "fits"),
    [
        (pa.int8(), "Int64", True),
        (pa.int64(), "Float64", True),
        (pa.uint32(), "Int64", True),
        (pa.float32(), "Float64", True),
        (pa.int16(), "Float32", True),
        (pa.null(), "Utf8", True),
        (pa.int64(), "Int32", False),
        (pa.uint64(), "Int64", False),
        (pa.int8(), "UInt64", False),
        (pa.int32(), "Float32", False),
        (pa.float64(), "Float32", False),
        (pa.float64(), "Int64", False),
        (pa.string(), "Float64", False),
        (pa.int64(), "Utf8", False),
        (pa.bool_(), "Int64", False),
        (pa.timestamp("us"), "Int64", False),
        (pa.list_(pa.int64()), "Int64", False),
    ],
    ids=str,
)
def test_arguments_widen_and_never_narrow(given: pa.DataType, wanted: str, fits: bool) -> None:
    handle = udf(args=(wanted,), returns=wanted)(lambda column: column)
    batch = pa.record_batch({"c": pa.nulls(2, given)})
    if fits:
        assert apply_udf_to_batch(handle, batch, ["c"]).type == getattr(pa, ARROW_NAMES[wanted])()
    else:
        with pytest.raises(InvalidPlan, match=f"argument 1 is declared {wanted} and gets"):
            apply_udf_to_batch(handle, batch, ["c"])


def test_the_largest_whole_number_may_become_a_float() -> None:
    handle = udf(args=("Float64",), returns="Float64")(lambda column: column)
    batch = pa.record_batch({"c": pa.array([2**63 - 1], pa.int64())})
    assert apply_udf_to_batch(handle, batch, ["c"]).to_pylist() == [float(2**63)]


def raises(_column):
    raise KeyError("row value 4711")


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (raises, "UDF 'broken' raised KeyError"),
        (lambda column: column.slice(1), "returned a length-2 array; 3 is expected"),
        (lambda column: pc.cast(column, pa.float64()), "returned an array of type double; declared is Int64"),
        (lambda column: column.to_pylist(), "returned list, not an Arrow array"),
        (lambda column: pa.chunked_array([column]), "returned ChunkedArray, not an Arrow array"),
        (lambda column: None, "returned NoneType"),
    ],
    ids=["raises", "wrong length", "wrong type", "a list", "chunks", "nothing"],
)
def test_a_broken_answer_is_a_value_error_that_names_the_udf(function, said: str) -> None:
    handle = udf(args=("Int64",), returns="Int64", name="broken")(function)
    with pytest.raises(UdfFailed, match=said) as caught:
        apply_udf_to_batch(handle, BATCH, ["qty"])
    assert isinstance(caught.value, ValueError)
    assert "'broken'" in str(caught.value) and "test_udf.py" in str(caught.value)


def test_the_text_of_the_users_exception_stays_in_the_chain() -> None:
    handle = udf(args=("Int64",), returns="Int64", name="broken")(raises)
    with pytest.raises(UdfFailed) as caught:
        apply_udf_to_batch(handle, BATCH, ["qty"])
    assert "4711" not in str(caught.value) and isinstance(caught.value.__cause__, KeyError)


def test_columns_must_exist_and_be_as_many_as_declared() -> None:
    with pytest.raises(UnknownColumn, match="no column 'prise'") as caught:
        apply_udf_to_batch(amount, BATCH, ["prise", "qty"])
    assert caught.value.fix == "did you mean 'price'?"
    with pytest.raises(InvalidPlan, match="takes 2 arguments, not 1"):
        apply_udf_to_batch(amount, BATCH, ["price"])
    with pytest.raises(WrongDeclarationType, match="list of column names"):
        apply_udf_to_batch(amount, BATCH, "price")
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(UnknownColumn, match="'a' more than once"):
        apply_udf_to_batch(amount, twice, ["a", "a"])


def test_only_record_batches_and_handles_of_the_right_kind_are_taken() -> None:
    vwap = declared_vwap(Vwap)
    with pytest.raises(TypeError, match="pyarrow.RecordBatch is needed, not Table"):
        apply_udf_to_batch(amount, pa.table({"price": [1.0], "qty": [1]}), ["price", "qty"])
    with pytest.raises(TypeError, match="takes what @udf made, not PythonAggregateUdfHandle") as caught:
        apply_udf_to_batch(vwap, BATCH, ["price", "qty"])  # type: ignore[arg-type]
    assert "apply_udaf_to_batch" in str(caught.value)
    with pytest.raises(TypeError, match="takes what @udaf made, not PythonScalarUdfHandle"):
        apply_udaf_to_batch(amount, BATCH, ["price", "qty"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="not function"):
        apply_udf_to_batch(raises, BATCH, ["qty"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="output_column"):
        apply_udf_to_batch(amount, BATCH, ["price", "qty"], output_column="")


def test_declared_types_are_checked_where_they_are_written() -> None:
    with pytest.raises(InvalidDeclaration, match="'Float128'") as caught:
        udf(args=("Float128",), returns="Int64")
    assert caught.value.fix == "did you mean 'Float32'?"
    for wrong in ("Decimal", "Timestamp", "", "Int"):
        with pytest.raises(ValueError, match="returns"):
            udf(args=("Int64",), returns=wrong)
    with pytest.raises(TypeError, match="tuple of type names"):
        udf(args="Int64", returns="Int64")
    with pytest.raises(TypeError, match="not DataType"):
        udf(args=(pa.int64(),), returns="Int64")
    with pytest.raises(ValueError, match="args is empty"):
        udf(args=(), returns="Int64")


def test_what_is_decorated_must_take_the_declared_arguments() -> None:
    with pytest.raises(ValueError, match="UDF 'one' cannot be called with 2 arguments"):
        udf(args=("Int64", "Int64"), returns="Int64", name="one")(lambda a: a)
    with pytest.raises(TypeError, match="decorates a function"):
        udf(args=("Int64",), returns="Int64")(Vwap)
    with pytest.raises(TypeError, match="decorates a function"):
        udf(args=("Int64",), returns="Int64")(7)  # type: ignore[arg-type]
    # A function written in C that says nothing of its arguments is taken as it is.
    assert udf(args=("Float64",), returns="Float64")(math.hypot).name == "hypot"


# ── aggregate ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_aggregate_over_a_whole_batch() -> None:
    vwap = declared_vwap(Vwap)
    assert isinstance(vwap, PythonAggregateUdfHandle)
    assert (vwap.name, vwap.args, vwap.state, vwap.returns) == (
        "vwap",
        ("Float64", "Float64"),
        ("Float64", "Float64"),
        "Float64",
    )
    assert "test_udf.py" in vwap.where.file
    result = apply_udaf_to_batch(vwap, BATCH, ["price", "qty"])
    assert result.equals(pa.array([11.0 / 12.0], pa.float64()))
    assert apply_udaf_to_batch(vwap, BATCH.slice(0, 0), ["price", "qty"]).to_pylist() == [None]


def test_an_aggregate_is_named_after_its_class_unless_told_otherwise() -> None:
    assert udaf(args=("Float64", "Float64"), state=("Float64", "Float64"), returns="Float64")(Vwap).name == "Vwap"


def test_states_of_parts_merge_in_any_order_to_the_same_result() -> None:
    vwap = declared_vwap(Vwap)
    whole = apply_udaf_to_batch(vwap, BATCH, ["price", "qty"])
    states = []
    for row in (2, 0, 1):
        part = vwap.accumulator()
        part.update_batch(BATCH.column("price").slice(row, 1), BATCH.column("qty").slice(row, 1))
        states.append(part.state())
    merged = vwap.accumulator()
    merged.merge_batch(*(pa.concat_arrays(list(column)) for column in zip(*states, strict=True)))
    assert merged.evaluate().equals(whole)


def test_every_group_gets_an_instance_of_its_own() -> None:
    vwap = declared_vwap(Vwap)
    first, second = vwap.accumulator(), vwap.accumulator()
    first.update_batch(pa.array([5.0]), pa.array([1.0]))
    assert (first.evaluate().to_pylist(), second.evaluate().to_pylist()) == ([5.0], [None])


def changed(**methods):
    return declared_vwap(type("Vwap", (Vwap,), methods))


@pytest.mark.parametrize(
    ("methods", "said"),
    [
        ({"evaluate": lambda self: pa.array([1.0, 2.0])}, r"evaluate\(\) returned a length-2 array"),
        (
            {"evaluate": lambda self: pa.array([1])},
            r"evaluate\(\) returned an array of type int64; declared is Float64",
        ),
        ({"evaluate": lambda self: 1.0}, r"evaluate\(\) returned float, not an Arrow array"),
        ({"evaluate": lambda self: 1 / 0}, r"evaluate\(\) raised ZeroDivisionError"),
        ({"update_batch": lambda self, a, b: a.no_such()}, r"update_batch\(\) raised AttributeError"),
        ({"__init__": lambda self: [].pop()}, r"__init__\(\) raised IndexError"),
    ],
)
def test_an_error_names_the_aggregate_and_the_method(methods, said: str) -> None:
    with pytest.raises(UdfFailed, match=f"UDAF 'vwap': {said}"):
        apply_udaf_to_batch(changed(**methods), BATCH, ["price", "qty"])


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (lambda self: (pa.array([1.0]),), "returned 1 arrays; declared are 2 state columns"),
        (lambda self: pa.array([1.0]), "returned DoubleArray; declared are 2 state columns"),
        (lambda self: (pa.array([1.0]), pa.array([1.0, 2.0])), "returned a length-2 array"),
        (lambda self: (pa.array([1.0]), pa.array(["x"])), "returned an array of type string; declared is Float64"),
    ],
)
def test_a_state_that_is_not_as_declared_is_refused(state, said: str) -> None:
    with pytest.raises(UdfFailed, match=rf"UDAF 'vwap': state\(\) {said}"):
        changed(state=state).accumulator().state()


def test_merging_something_else_than_the_declared_state_is_refused() -> None:
    with pytest.raises(InvalidPlan, match=r"merge_batch\(\) takes 2 arguments, not 1"):
        declared_vwap(Vwap).accumulator().merge_batch(pa.array([1.0]))
    with pytest.raises(InvalidPlan, match=r"merge_batch\(\): argument 2 is declared Float64 and gets string"):
        declared_vwap(Vwap).accumulator().merge_batch(pa.array([1.0]), pa.array(["x"]))


def test_a_class_that_is_no_aggregate_is_refused_where_it_is_decorated() -> None:
    with pytest.raises(TypeError, match="has no 'merge_batch', 'state'"):
        declared_vwap(type("Half", (), {"update_batch": lambda s, a, b: None, "evaluate": lambda s: None}))
    with pytest.raises(TypeError, match="decorates a class"):
        declared_vwap(raises)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"update_batch\(\) cannot be called with 2 arguments"):
        changed(update_batch=lambda self, only: None)
    with pytest.raises(ValueError, match=r"__init__\(\) cannot be called with 0 arguments"):
        changed(__init__=lambda self, needed: None)
    with pytest.raises(ValueError, match="state is empty"):
        udaf(args=("Int64",), state=(), returns="Int64")
