"""Tracebacks of `--debug`: every stack, and no word that an error of ours keeps to itself."""

from __future__ import annotations

from ematix_flow.cli.tracebacks import traceback_text
from ematix_flow.errors import StepFailed
from tests.declare.test_withheld import caught


def test_every_stack_is_shown_and_no_value_that_a_driver_quotes() -> None:
    text = traceback_text(caught("A value does not fit.", ValueError('invalid input: "ann@example.com"')))
    assert "ann@example.com" not in text and "Withheld: ValueError: (what it said may quote" in text
    assert text.count("Traceback") == 2 and text.index("ValueError") < text.index("StepFailed: A value does not fit.")


def test_secrets_are_not_shown() -> None:
    text = traceback_text(StepFailed("no answer from postgresql://ann:hidden-7f3a@host/db"))
    assert "hidden-7f3a" not in text
