"""The commands `limit`, `pause`, `resume` and `batch`: mistakes in names and options, and the jobs of a repaired flow."""

from typing import Any

import pytest

from interlock.core.lifecycle import builtin
from interlock.core.outcome import FailedFinally
from interlock.store import OpenStore
from interlock.worker.app_loader import find
from tests.contract.kit import claim_rules, settle
from tests.kit import Place
from tests.surface.cli_kit import Call, enqueued

VERBS = [("pause",), ("resume",), ("limit", "--rate", "1/s"), ("limit", "--reset")]


@pytest.fixture
def store(shop: str, place: Place) -> OpenStore:
    """Another process on the shop's database, in real time."""
    return place.open(real_time=True)


@pytest.fixture
def app(shop: str) -> Any:
    return find(shop)


# ---------------------------------------------------------------- names
@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_unknown_kind_is_refused(call: Call, app: Any, verb: tuple[str, ...]) -> None:
    """Nothing is stored, and the sentence names the kinds that exist."""
    answer = call(*verb, "--kind", "snd")
    assert (answer.code, answer.sentence) == (
        1, "This app has no kind 'snd', and no app has registered it in this database: this app has greet, send."
    )  # fmt: skip
    assert (app.limits(), app.operations()) == ([], [])


def test_unknown_kind_is_refused_without_an_app(call: Call, app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The known kinds are then those with jobs, limits or pauses."""
    enqueued(call, "greet", '{"name": "ann"}')
    url = app.database.url
    if "postgres" in url:
        pytest.skip("the tests' schema has a name, which only the app gives")
    monkeypatch.delenv("INTERLOCK_APP")
    answer = call("pause", "--kind", "snd", "--database", url)
    assert (answer.code, answer.sentence) == (
        1, "No app has registered a kind 'snd' in this database: those with jobs, limits or pauses are greet."
    )  # fmt: skip
    assert call("pause", "--kind", "greet", "--database", url).out == "kind greet is paused\n"


def test_kind_of_another_app_is_paused(call: Call, app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its app has registered it in this database."""
    monkeypatch.delitem(app.kinds, "send")
    answer = call("pause", "--kind", "send")
    assert (answer.code, answer.out, answer.err) == (0, "kind send is paused\n", "")


def test_pause_of_an_unknown_kind_can_be_ended(call: Call, app: Any) -> None:
    """A program may have paused a kind that no app has."""
    app.kind("snd").pause(by="ann")
    assert call("resume", "--kind", "snd").out == "kind snd is resumed\n"


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_unknown_queue_is_changed_with_a_warning(call: Call, app: Any, verb: tuple[str, ...]) -> None:
    enqueued(call, "greet", '{"name": "ann"}', "--queue", "mail")
    app.queue("slow").limit(max_running=2)
    answer = call(*verb, "--queue", "mial")
    assert answer.code == 0
    assert answer.out.startswith("queue mial")
    assert (
        answer.err
        == "No app or worker uses a queue 'mial', and no job waits or runs in it: known are default, mail, slow.\n"
    )


@pytest.mark.parametrize("name", ["default", "mail", "slow"])
def test_known_queue_is_changed_without_a_warning(call: Call, app: Any, name: str) -> None:
    """It is the queue of a kind, of a waiting job, or of a limit."""
    enqueued(call, "greet", '{"name": "ann"}', "--queue", "mail")
    app.queue("slow").limit(max_running=2)
    answer = call("pause", "--queue", name)
    assert (answer.out, answer.err) == (f"queue {name} is paused\n", "")


# ---------------------------------------------------------------- options
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--burst", "3"), "--burst needs --rate: give both, as in --rate 10/s --burst 3."),
        (("--burst", "3", "--max-running", "2"), "--burst needs --rate: give both, as in --rate 10/s --burst 3."),
        (("--burst", "3", "--rate", "none"), "--burst needs --rate: give both, as in --rate 10/s --burst 3."),
        (("--burst-per-key", "4"), "--burst-per-key needs --rate-per-key: give both, as in --rate-per-key 10/s"),
        (("--burst-per-key", "4", "--rate", "1/s"), "--burst-per-key needs --rate-per-key"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
@pytest.mark.usefixtures("shop")
def test_burst_needs_its_rate(call: Call, options: tuple[str, ...], said: str) -> None:
    answer = call("limit", "--kind", "send", *options)
    assert answer.code == 2
    assert said in answer.sentence


def test_wrong_limit_of_keys_changes_nothing_else(call: Call, store: OpenStore) -> None:
    before = store.limits.all()
    answer = call("limit", "--kind", "send", "--max-running", "7", "--rate-per-key", "often")
    assert "The rate is 'often': give a number and a time" in answer.sentence
    assert answer.code == 1
    assert store.limits.all() == before


@pytest.mark.usefixtures("shop")
def test_help_tells_the_limits_of_keys_apart(call: Call) -> None:
    """And it says where a reason is shown."""
    said = " ".join(call("limit", "--help").out.split())
    assert said.count("of each concurrency key") >= 3
    assert "after a quiet time" in said
    assert "The reason, which interlock operations shows." in said
    assert "job's history" not in said


# ---------------------------------------------------------------- batches
def test_batch_does_not_list_redriven_jobs(call: Call, app: Any, store: OpenStore) -> None:
    """Its counts and its list agree: a job that was redriven is counted and listed as its successor."""
    with app.flow("import") as flow:
        flow.batch("parts", [app.kinds["greet"].request(name=name) for name in ("ann", "bob")])
    leases = store.queue.claim("w", claim_rules("greet", lifecycle=builtin("standard")), ("default",), 10)
    for lease in leases:
        settle(store, lease, FailedFinally("broken"))
    bad, repaired = (lease.job.id for lease in leases)
    new = call("redrive", repaired).out.strip()
    shown = call("batch", flow.id, "--json").json
    assert (shown["failed"], [job["id"] for job in shown["jobs"]]) == (1, [bad, new])
    assert repaired not in call("batch", flow.id).out
    assert {job.id for job in flow.jobs(phase="failed")} == {bad, repaired}
