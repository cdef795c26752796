"""An option of a wrong type is refused with a message that names the option, the value and what to give."""

from datetime import UTC, datetime
from typing import Any

import pytest

from interlock import App, Tx, UsageError

SOON = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.fixture
def app() -> App[Tx]:
    return App("sqlite:///never-opened.db")


@pytest.fixture
def kind(app: App[Tx]) -> Any:
    @app.job
    def greet(name: str) -> None: ...

    return greet


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"priority": "high"}, "priority is 'high': give a whole number"),
        ({"priority": True}, "priority is True: give a whole number"),
        ({"priority": 1.5}, "priority is 1.5: give a whole number"),
        ({"delay": "soon"}, "delay is 'soon': give seconds, or a timedelta"),
        ({"ttl": "soon"}, "ttl is 'soon': give seconds, or a timedelta"),
        ({"run_at": "tomorrow"}, "run_at is 'tomorrow': give a datetime with a time zone"),
        ({"queue": 7}, "queue is 7: give a string"),
        ({"idempotency_key": 7}, "idempotency_key is 7: give a string"),
        ({"unique_key": b"x"}, "unique_key is b'x': give a string"),
        ({"tags": ["a"]}, r"tags is \['a'\]: give a dict of strings"),
        ({"tags": {"user": 5}}, "The value of tag user is 5: give a string"),
        ({"tags": {5: "user"}}, "The name of a tag is 5: give a string"),
    ],
)
def test_wrong_type_is_refused(kind: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        kind.using(**options)


@pytest.mark.parametrize(("first", "second"), [({"run_at": SOON}, {"delay": 5}), ({"delay": 5}, {"run_at": SOON})])
def test_delay_and_run_at_from_two_calls_are_refused(kind: Any, first: dict[str, Any], second: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="Both delay and run_at are given"):
        kind.using(**first).using(**second)


def test_enqueue_many_and_schedule_accept_only_requests(app: App[Tx], kind: Any) -> None:
    wrong: Any = "greet"
    with pytest.raises(UsageError, match=r"request is 'greet': give the value of kind.request\(…\)"):
        app.enqueue_many([wrong])
    with pytest.raises(UsageError, match="request is 'greet'"):
        app.schedule("daily", "0 3 * * *", wrong)


def test_reconcile_batch_must_be_a_whole_number(kind: Any) -> None:
    with pytest.raises(UsageError, match="batch is 'all': give a whole number"):
        kind.reconcile(batch="all")(kind)
