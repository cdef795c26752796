"""Options of a call, schedules, and where the database is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from interlock import (
    App,
    InterlockError,
    Lifecycle,
    Tx,
)
from interlock.errors import UsageError
from interlock.store.database import FALLBACK, choose_url
from tests.surface.test_declarations import app, count, fetch, greet

__all__ = ["app"]


TASK = Lifecycle(
    "task",
    transitions=[
        ("pending", "claim", "running"),
        ("running", "succeed", "done"),
        ("running", "fail", "error"),
        ("running", "lose", "pending"),
    ],
)


# ---------------------------------------------------------------- options of a call
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"delay": 1, "run_at": datetime(2026, 1, 1, tzinfo=UTC)}, "Both delay and run_at"),
        ({"run_at": datetime(2026, 1, 1)}, "has no time zone"),  # noqa: DTZ001 - the mistake itself
        ({"delay": -1}, "delay is -1"),
        ({"priority": 2**31}, "at most 32 bits"),
        ({"idempotency_key": "k" * 256}, "256 characters; the limit is 255: use a digest"),
        ({"idempotency_key": ""}, "idempotency_key is empty"),
        ({"unique_key": "\ud800"}, "half of a surrogate pair"),
        ({"queue": " slow"}, "space around it"),
        ({"tags": {"": "x"}}, "A tag's name is empty"),
        ({"tags": {"user": 5}}, "The value of tag user is 5: give a string"),
        ({"unique_for": 0}, "unique_for is zero: give more than 0 seconds"),
        ({"unique_for": -1}, "unique_for is -1"),
        ({"on_conflict": "merge"}, 'on_conflict is \'merge\': give one of "keep", "replace", "debounce"'),
    ],
)
def test_invalid_option_of_a_call_is_refused(app: App[Tx], options: dict[str, Any], said: str) -> None:
    """Before the database is used."""
    using: Any = app.job()(greet).using
    with pytest.raises(InterlockError) as caught:
        using(**options)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"unique_for": 60}, "give unique_key, too"),
        ({"on_conflict": "replace"}, "give unique_key, too"),
        ({"unique_key": "u", "on_conflict": "replace", "idempotency_key": "k"}, "belongs to one payload"),
        ({"unique_key": "u", "on_conflict": "debounce"}, "give delay above zero, or run_at"),
        ({"unique_key": "u", "on_conflict": "debounce", "delay": 9, "unique_for": 5}, "at least as long as delay"),
    ],
)
def test_options_of_a_unique_key_that_do_not_fit_together_are_refused(
    app: App[Tx], options: dict[str, Any], said: str
) -> None:
    """When a request is made, because they may come from several `using`; before the database is used."""
    kind: Any = app.job()(greet)
    for name, value in options.items():
        kind = kind.using(**{name: value})
    for call in (kind.request, kind.enqueue):
        with pytest.raises(UsageError) as caught:
            call("Ann")
        assert said in str(caught.value)


def test_schedule_refuses_a_request_that_replaces_payloads(app: App[Tx]) -> None:
    request = app.job()(greet).using(unique_key="u", on_conflict="replace").request("Ann")
    with pytest.raises(UsageError, match="has on_conflict"):
        app.schedule("daily", "0 3 * * *", request)


def test_ttl_needs_an_expire_transition(app: App[Tx]) -> None:
    """Without an `expire` transition the job could not expire."""
    kind = app.job(lifecycle=TASK)(greet)
    with pytest.raises(UsageError, match="has no `expire` transition from pending"):
        kind.using(ttl=60)


def test_using_can_be_chained(app: App[Tx]) -> None:
    """A later option replaces an earlier one, other options stay, and the kind itself does not change."""
    kind = app.job()(greet)
    chosen = kind.using(queue="slow", priority=5).using(priority=0, tags={"user": "7"}).request("Ann").options
    assert (chosen.queue, chosen.priority, chosen.tags) == ("slow", 0, '{"user":"7"}')
    assert kind.request("Ann").options.queue is None


def test_request_has_no_connection_and_belongs_to_its_app(app: App[Tx]) -> None:
    """A request may be enqueued much later, when that connection is closed."""
    kind = app.job()(greet)
    with pytest.raises(UsageError, match="has no connection"):
        kind.using(conn=object()).request("Ann")
    stranger = App("sqlite:///never-opened.db")
    with pytest.raises(UsageError, match="belongs to another app"):
        stranger.enqueue_many([kind.request("Ann")])


# ---------------------------------------------------------------- schedules
@pytest.mark.parametrize(
    ("cron", "options", "said"),
    [
        ("0 3 * *", {}, "give five fields"),
        ("0 3 * * *", {"tz": "Mars/Olympus"}, "does not know"),
        ("0 3 * * *", {"tz": "../etc/passwd"}, "does not know"),
        ("0 3 * * *", {"catch_up": "some"}, "give one of last, none, all"),
    ],
)
def test_invalid_schedule_is_refused(app: App[Tx], cron: str, options: dict[str, Any], said: str) -> None:
    """When it is declared."""
    schedule: Any = app.schedule
    with pytest.raises(UsageError, match=said):
        schedule("nightly", cron, app.job()(greet).request("Ann"), **options)
    assert not app.declared_schedules


def test_schedule_has_a_unique_name_and_its_own_key(app: App[Tx]) -> None:
    """The key is the name and the tick, so that any number of workers makes one job per tick."""
    kind = app.job()(greet)
    app.schedule("nightly", "0 3 * * *", kind.request("Ann"), tz="Europe/Berlin", catch_up="none")
    with pytest.raises(UsageError, match="already has a schedule nightly"):
        app.schedule("nightly", "0 4 * * *", kind.request("Ann"))
    with pytest.raises(UsageError, match="makes its own"):
        app.schedule("weekly", "0 3 * * 1", kind.using(idempotency_key="mine").request("Ann"))
    assert list(app.declared_schedules) == ["nightly"]


# ---------------------------------------------------------------- claim rules
def test_claim_starts_in_progress_without_a_guard_or_start(app: App[Tx]) -> None:
    """Protocol 16: with neither a guard nor a `start` transition."""
    kind = app.job(lease=20)(greet)
    (rule,) = kind.spec.claim_rules(3)
    assert (rule.kind, rule.lifecycle, rule.version, rule.lease) == ("greet", "standard", 3, 20.0)
    assert (rule.state, rule.target, rule.status) == ("PENDING", "RUNNING", "IN_PROGRESS")
    kind.guard(lambda *_, **__: None)
    assert kind.spec.claim_rules(3)[0].status == "LEASED"


def test_resting_job_is_claimed_along_two_transitions(app: App[Tx]) -> None:
    """The claim records `retry` and `claim`."""
    image = Lifecycle(
        "image",
        transitions=[
            ("queued", "claim", "running"),
            ("running", "succeed", "completed"),
            ("running", "fail", "failed"),
            ("running", "lose", "queued"),
            ("failed", "retry", "queued"),
            ("failed", "bury", "dead_letter"),
        ],
    )
    claim_rules = {
        rule.state: [arrow.event for arrow in rule.path] for rule in app.job(lifecycle=image)(greet).spec.claim_rules(1)
    }
    assert claim_rules == {"queued": ["claim"], "failed": ["retry", "claim"]}


# ---------------------------------------------------------------- the database URL
def test_url_is_an_argument_a_variable_or_the_default_file() -> None:
    """In this order; an empty variable is ignored."""
    both = {"INTERLOCK_DATABASE_URL": "sqlite:///a.db", "DATABASE_URL": "sqlite:///b.db"}
    assert choose_url("sqlite:///c.db", both) == "sqlite:///c.db"
    assert choose_url(None, both) == "sqlite:///a.db"
    assert choose_url(None, {**both, "INTERLOCK_DATABASE_URL": ""}) == "sqlite:///b.db"
    assert choose_url(None, {}) == FALLBACK


@pytest.mark.parametrize(
    ("url", "said"),
    [("mysql://ann:secret@host/db", "starts with 'mysql'"), ("jobs.db", "has no scheme"), ("sqlite", "has no scheme")],
)
def test_unknown_url_is_reported_at_the_first_verb(url: str, said: str) -> None:
    """An app can be created with any URL; the error says what to write, and shows no password."""
    app = App(url)
    with pytest.raises(UsageError) as caught:
        app.get("some-id")
    assert said in str(caught.value)
    assert "sqlite:///jobs.db" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_complete_is_refused_for_a_kind_without_external_work(app: App[Tx]) -> None:
    """No job of such a kind could be completed."""
    with pytest.raises(
        UsageError,
        match=r"count has no reconcile function, so its jobs never wait for an external system",
    ):
        app.job()(count).complete("hash", 1)


def test_parameter_run_with_another_type_is_refused() -> None:
    """When it is declared, not when its first job fails."""
    app: App[Tx] = App("sqlite:///nowhere.db")

    def confused(run: int) -> int:
        return run

    with pytest.raises(UsageError, match="is named run, but is annotated as int"):
        app.job()(confused)


@pytest.mark.parametrize("role", ["reconcile", "on_cancel"])
def test_reconcile_and_on_cancel_must_be_coroutines(app: App[Tx], role: str) -> None:
    """A plain function would block every job of the worker."""
    kind = app.job()(fetch)
    register: Any = kind.reconcile() if role == "reconcile" else kind.on_cancel

    def blocking(given: Any) -> None: ...

    with pytest.raises(
        UsageError,
        match=f"The {role} function of fetch runs in the worker's event loop, so it cannot block: write it with async def",
    ):
        register(blocking)
    assert getattr(kind.spec, role) is None


def test_reconcile_interval_of_zero_is_refused(app: App[Tx]) -> None:
    """The worker would do nothing else."""
    with pytest.raises(UsageError, match="above zero"):
        app.job()(fetch).reconcile(every=0)(cast("Any", fetch))
