"""Secrets are recognised by shape and by value."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from hypothesis import assume, given, strategies as st

from ematix_flow.declare.redaction import (
    NEVER_SECRET,
    REDACTED,
    display_url,
    forget_secrets,
    is_secret_field,
    redact_url,
    remember_secret,
    scrub,
    url_secrets,
)


@pytest.fixture(autouse=True)
def _no_memory_between_tests() -> Iterator[None]:
    forget_secrets()
    yield
    forget_secrets()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgres://ann:pw1@db/x", "postgres://ann:<redacted>@db/x"),
        ("postgres://ann:p@w/1@db:5/x", "postgres://ann:<redacted>@db:5/x"),
        ("postgres://ann@db/x", "postgres://ann@db/x"),
        ("postgres://ann@db/x?sslpassword=pw1&a=b", "postgres://ann@db/x?sslpassword=<redacted>&a=b"),
        ("postgres://db/x", "postgres://db/x"),
        ("postgres://:pw1@db/x", "postgres://:<redacted>@db/x"),
        ("postgres://db/x?user=ann&password=pw1", "postgres://db/x?user=ann&password=<redacted>"),
        ("postgres://ann:pw1@db/x?sslpassword=pw1&a=b@c", "postgres://ann:<redacted>@c"),
        ("postgres://ann:pw1@db/x?password=p@w1", "postgres://ann:<redacted>@db/x?password=<redacted>"),
        ("amqp://ann:pw1@mq:5672/v", "amqp://ann:<redacted>@mq:5672/v"),
        ("http://ann:pw1@registry:8081", "http://ann:<redacted>@registry:8081"),
        ("s3://bucket/p?secret_access_key=pw1", "s3://bucket/p?secret_access_key=<redacted>"),
        ("${WAREHOUSE_URL}", "${WAREHOUSE_URL}"),
        ("", ""),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert redact_url(url) == shown
    assert "pw1" not in shown


def test_command_output_uses_stars_and_scrubbing_leaves_them() -> None:
    shown = display_url("postgres://ann:pw1@db/x?password=pw1")
    assert shown == "postgres://ann:***@db/x?password=***"
    assert scrub(shown) == shown


@pytest.mark.parametrize(
    "name", ["password", "sasl_plain_password", "access_key_id", "private_key", "api_key", "token"]
)
def test_secret_fields_are_told_by_their_name(name: str) -> None:
    assert is_secret_field(name)


@pytest.mark.parametrize("name", ["url", "sasl_plain_username", "user", "keyspace", "credentials_path", "monkey"])
def test_other_fields_are_not_secret(name: str) -> None:
    assert not is_secret_field(name)


@pytest.mark.parametrize(
    "text",
    [
        "password=pw1",
        "connection info: host=db password='p w1' user=ann",
        "PASSWORD: pw1, user: ann",
        '{"sasl_plain_password": "pw1"}',
        "secret_access_key = pw1",
        "failed for amqp://ann:pw1@mq/v: refused",
        "two: postgres://a:pw1@db/x mysql://b:pw1@db/y",
    ],
)
def test_known_shapes_are_blanked_in_any_text(text: str) -> None:
    assert "w1" not in scrub(text)
    assert REDACTED in scrub(text)


def test_ordinary_words_are_left_alone() -> None:
    text = 'password authentication failed for user "ann"; the key (id) is unique, see https://example.com/a?b=c'
    assert scrub(text) == text


def test_a_remembered_value_is_blanked_in_every_spelling() -> None:
    remember_secret("p@ss w/ord\\1")
    for form in ("p@ss w/ord\\1", "p%40ss%20w%2Ford%5C1", "p%40ss+w%2Ford%5C1", "p@ss w/ord\\\\1"):
        assert scrub(f"<{form}>") == f"<{REDACTED}>", form


def test_a_value_remembered_in_its_encoded_form_is_known_decoded() -> None:
    remember_secret("p%40ss")
    assert scrub("it was p@ss") == f"it was {REDACTED}"


def test_values_too_short_to_hide_are_not_remembered() -> None:
    remember_secret("ab")
    remember_secret("")
    remember_secret(None)
    assert scrub("about") == "about"


def test_the_name_of_a_system_stays_readable_even_when_it_is_the_password() -> None:
    remember_secret("postgres")
    assert scrub("the postgres backend") == "the postgres backend"
    assert scrub("postgres://ann:postgres@db/x") == "postgres://ann:<redacted>@db/x"


def test_a_longer_secret_is_not_left_half_hidden_by_a_shorter_one() -> None:
    remember_secret("abc")
    remember_secret("abcdef")
    assert scrub("abcdef") == REDACTED


@given(st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), min_size=3, max_size=20))
def test_no_remembered_secret_survives_scrubbing(secret: str) -> None:
    forget_secrets()
    remember_secret(secret)
    assume(secret.lower() not in NEVER_SECRET and secret not in REDACTED)
    assert secret not in scrub(secret)


def test_the_secrets_of_a_url_are_its_password_and_its_secret_parameters() -> None:
    assert set(url_secrets("postgres://a:one@db/x?password=two&sslmode=on")) == {"one", "two"}
    assert url_secrets("postgres://a@db/x") == ()


def test_scrubbing_suits_log_records(caplog: pytest.LogCaptureFixture) -> None:
    remember_secret("hunter2")
    with caplog.at_level(logging.INFO):
        logging.getLogger("test").info("%s", scrub("tried hunter2"))
    assert "hunter2" not in caplog.text
