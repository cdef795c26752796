"""Webhooks: messages are signed as in Standard Webhooks, contain nothing private, and go only to public addresses."""

import base64
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.errors import UsageError
from interlock.jobs.webhook import Webhook, headers, is_public, message, sign, verify
from tests.pure.model import SIX, make_job

# The example with which the reference libraries of Standard Webhooks are tested.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
SENT = 1614265330
BODY = b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
OTHER = "whsec_" + base64.b64encode(b"another secret of 24 byte").decode()
URL = "https://example.com/hooks"


# ---------------------------------------------------------------- signatures
def test_signature_follows_standard_webhooks() -> None:
    assert sign(SECRET, ID, SENT, BODY) == SIGNATURE
    assert headers(SECRET, ID, SENT, BODY) == {
        "content-type": "application/json", "user-agent": "interlock",
        "webhook-id": ID, "webhook-timestamp": str(SENT), "webhook-signature": SIGNATURE,
    }  # fmt: skip


def test_secret_without_the_prefix_is_used_unchanged() -> None:
    assert sign("whsec_" + base64.b64encode(b"plain words").decode(), ID, SENT, BODY) == sign(
        "plain words", ID, SENT, BODY
    )


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        ("", "is empty"),
        ("whsec_", "is empty"),
        ("whsec_abc", "the rest is not base64"),
        ("whsec_abcd!efgh", "the rest is not base64"),
    ],
)
def test_empty_or_undecodable_secret_is_refused(secret: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        sign(secret, ID, SENT, BODY)


@given(
    st.text(min_size=1),
    st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1),
    st.integers(0, 10**12),
    st.binary(),
)
def test_signed_message_is_verified(secret: str, id: str, timestamp: int, body: bytes) -> None:
    secret = f"s{secret}"
    assert verify(secret, headers(secret, id, timestamp, body), body, timestamp)
    assert not verify(secret, headers(secret, id, timestamp, body), body + b" ", timestamp)


def test_receiver_accepts_any_of_its_secrets_and_any_signature() -> None:
    """Secrets can be rotated without losing a message."""
    sent = headers(SECRET, ID, SENT, BODY)
    assert verify([OTHER, SECRET], sent, BODY, SENT)
    assert verify([SECRET], sent | {"webhook-signature": f"v1a,abc v1,bm9wZQ== {SIGNATURE}"}, BODY, SENT)
    assert verify([SECRET], {name.title(): value for name, value in sent.items()}, BODY, SENT)


def test_single_secret_is_not_read_as_a_list_of_letters() -> None:
    sent = headers("w", ID, SENT, BODY)
    assert verify(["w"], sent, BODY, SENT)
    assert not verify("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", sent, BODY, SENT)


@pytest.mark.parametrize(
    "changed",
    [
        {"webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OF="},
        {"webhook-signature": SIGNATURE.removeprefix("v1,")},
        {"webhook-signature": "v1a" + SIGNATURE.removeprefix("v1")},
        {"webhook-signature": ""},
        {"webhook-signature": "v1,ä"},
        {"webhook-id": "msg_other"},
        {"webhook-timestamp": str(SENT + 1)},
        {"webhook-timestamp": ""},
        {"webhook-timestamp": "²"},
        {"webhook-timestamp": "9" * 5000},
        {"webhook-timestamp": f"{SENT}.0"},
    ],
)
def test_changed_message_is_not_verified(changed: dict[str, str]) -> None:
    assert not verify([SECRET], headers(SECRET, ID, SENT, BODY) | changed, BODY, SENT)


def test_message_without_a_header_or_with_another_secret_is_not_verified() -> None:
    sent = headers(SECRET, ID, SENT, BODY)
    for name in ("webhook-id", "webhook-timestamp", "webhook-signature"):
        assert not verify([SECRET], {key: value for key, value in sent.items() if key != name}, BODY, SENT)
    assert not verify([OTHER], sent, BODY, SENT)
    assert not verify([], sent, BODY, SENT)


@pytest.mark.parametrize(
    ("now", "good"), [(SENT - 301, False), (SENT - 300, True), (SENT + 300, True), (SENT + 301, False)]
)
def test_old_or_future_message_is_not_verified(now: float, good: bool) -> None:
    """A recorded message cannot be replayed later."""
    assert verify([SECRET], headers(SECRET, ID, SENT, BODY), BODY, now) is good
    assert verify([SECRET], headers(SECRET, ID, SENT, BODY), BODY, now, tolerance=301)


# ---------------------------------------------------------------- declaring
def test_webhook_hides_its_secret() -> None:
    assert SECRET not in f"{Webhook(URL, SECRET)!r} {Webhook(URL, SECRET)}"
    assert URL in repr(Webhook(URL, SECRET))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("ftp://example.com/", "neither http nor https"),
        ("file:///etc/passwd", "neither http nor https"),
        ("https://", "has no host"),
        ("example.com/hooks", "has no host"),
        ("https://example.com:https/", "cannot be read"),
        ("https://[::1/", "cannot be read"),
        ("https://user:hunter2@example.com/", "for example.com contains a user or password"),
        ("https://@example.com/", "contains a user"),
        ("https://example.com/a b", "has a space"),
        ("https://example.com/\r\nHost: x", "has a space"),
        ("https://exam\nple.com/", "has a space"),
        ("https://example.com\\elsewhere/", "backslash"),
        ("https://bücher.example/", "beyond ASCII"),
        ("http://127.0.0.1:8000/", "127.0.0.1, which is not public"),
        ("http://[::1]/", "::1, which is not public"),
        ("http://169.254.169.254/latest/meta-data", "not public"),
    ],
)
def test_invalid_url_is_refused_when_it_is_declared(url: str, said: str) -> None:
    """The error shows no password."""
    with pytest.raises(UsageError, match=said) as caught:
        Webhook(url, SECRET)
    assert "hunter2" not in str(caught.value)


def test_private_address_can_be_allowed() -> None:
    assert Webhook("http://127.0.0.1:8000/", SECRET, allow_private=True).allow_private
    assert Webhook("http://8.8.8.8/", SECRET)


@pytest.mark.parametrize("secret", ["", "too short", "whsec_c2hvcnQ="])
def test_short_secret_is_refused(secret: str) -> None:
    with pytest.raises(UsageError, match="at least 24 random bytes"):
        Webhook(URL, secret)


# ---------------------------------------------------------------- addresses
@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "169.254.169.254", "100.64.0.1", "192.0.2.1",
        "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
        "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12:3456::1", "fec0::1", "ff02::1", "2001:db8::1", "2001::1", "100::1", "4000::1",
        "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "2002:7f00:1::", "2002:a00:1::1",
        "64:ff9b::127.0.0.1", "64:ff9b::a00:1", "64:ff9b:1::1",
    ],
)  # fmt: skip
def test_private_addresses_are_not_public(address: str) -> None:
    """Loopback, private, link-local, shared, documentation, multicast and reserved addresses, and such IPv4 addresses
    in every IPv6 form.
    """
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "1.1.1.1", "172.32.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1"],
)
def test_public_addresses_are_public(address: str) -> None:
    assert is_public(address)


# ---------------------------------------------------------------- the message
NOW = datetime(2025, 10, 26, 3, 0, 0, 250000, tzinfo=timezone(timedelta(hours=1)))
JOB = replace(
    make_job(SIX["standard"], phase="failed"), id="0192", kind="shop.send", state="DEAD", attempt=3, payload={"card": "4111"}, idempotency_key="order-4111",
    last_error="Traceback\n  in pay\nValueError: no money\n", finished_at=NOW,
)  # fmt: skip


def test_message_says_which_job_ended_how_and_when() -> None:
    assert message(JOB) == {
        "type": "job.failed",
        "timestamp": "2025-10-26T02:00:00.250000Z",
        "data": {
            "id": "0192", "kind": "shop.send", "state": "DEAD", "phase": "failed", "attempt": 3,
            "finished_at": "2025-10-26T02:00:00.250000Z", "error": "ValueError: no money",
        },
    }  # fmt: skip


def test_message_contains_no_payload_result_or_earlier_error() -> None:
    done = replace(JOB, phase="succeeded", state="SUCCEEDED", result={"receipt": "secret"})
    text = json.dumps(message(done))
    assert not any(each in text for each in ("4111", "secret", "receipt", "money"))
    assert message(done)["type"] == "job.succeeded"


def test_message_of_an_unfinished_job_has_its_last_update_time() -> None:
    told: Any = message(
        replace(JOB, phase="pending", finished_at=None, updated_at=NOW.astimezone(UTC) + timedelta(hours=1))
    )
    assert (told["timestamp"], told["data"]["finished_at"]) == ("2025-10-26T03:00:00.250000Z", None)


@pytest.mark.parametrize(
    ("error", "told"), [(None, None), ("", None), ("no money", "no money"), ("x" * 900, "x" * 200)]
)
def test_error_is_one_short_line(error: str | None, told: str | None) -> None:
    assert message(replace(JOB, last_error=error))["data"]["error"] == told
