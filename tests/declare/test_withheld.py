"""What is left of the causes of an error: their types and stacks, and no value of a row."""

from __future__ import annotations

import traceback

import pytest

from ematix_flow import Annotated, BigInt, Integer, ematix, pk
from ematix_flow.declare.withheld import SHOWN_BY, Withheld, cause_without_values, without_values
from ematix_flow.errors import ConnectionFailed, FlowError, StepFailed

VALUE = "ann@example.com"


def caught(message: str, cause: Exception | None, kind: type[Exception] = StepFailed) -> Exception:
    """An error that was raised from another."""
    try:
        try:
            if cause is not None:
                raise cause
        finally:
            raise kind(message) from cause
    except Exception as exc:
        return exc


def shown(exc: BaseException) -> str:
    """What Python prints of an error that nobody catches."""
    return "".join(traceback.format_exception(without_values(exc)))


def test_a_cause_keeps_its_type_and_its_stack_and_not_its_words() -> None:
    error = caught("A value does not fit.", ValueError('invalid input: "ann@example.com"'))
    stack = error.__cause__.__traceback__ if error.__cause__ else None
    cause = cause_without_values(error)
    assert isinstance(cause, Withheld) and str(cause).startswith("ValueError: (") and cause.__traceback__ is stack
    assert "ann@example.com" not in shown(error)


def test_words_that_the_error_says_itself_stay_and_no_more_of_them() -> None:
    cause = OSError("no route to host\nLINE 1: SELECT 'ann@example.com'")
    text = shown(caught("The server does not answer: no route to host", cause, ConnectionFailed))
    assert "OSError: no route to host\n" in text and "ann@example.com" not in text
    own = RuntimeError("boom\nbang")
    assert cause_without_values(caught("Pipeline 'p' raised RuntimeError: boom\nbang", own)) is own


def test_causes_of_causes_and_what_was_being_handled_are_cleared_too() -> None:
    try:
        try:
            raise KeyError(VALUE)
        except KeyError:
            raise ConnectionFailed("The server does not answer.")  # noqa: B904 - what Python chains by itself
    except ConnectionFailed as exc:
        outer = caught("The load failed.", exc)
    text = shown(outer)
    assert text.count("Traceback") == 3 and "The server does not answer." in text and "ann@example.com" not in text
    assert shown(outer) == text


def test_causes_keep_all_where_the_environment_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SHOWN_BY, "1")
    cause = ValueError('invalid input: "ann@example.com"')
    assert cause_without_values(caught("A value does not fit.", cause)) is cause


@ematix.table(schema="public")
class Ages:
    """A table that takes no text."""

    id: Annotated[BigInt, pk()]
    age: Integer


def test_an_error_of_sync_quotes_no_value_wherever_it_is_printed(pg_url: str) -> None:
    @ematix.connection
    class people:
        kind = "postgres"
        url = pg_url

    @ematix.pipeline(target=Ages, target_connection="people", mode="append")
    def load_ages(conn):  # type: ignore[no-untyped-def]
        return "SELECT 1 AS id, CAST(lower('ANN@example.com') AS integer) AS age"

    with pytest.raises(FlowError) as failed:
        load_ages.sync()
    text = "".join(traceback.format_exception(failed.value))
    assert VALUE not in text and "psycopg.errors.InvalidTextRepresentation: (what it said" in text
