"""The commands `schedules` and `schedule`: what they print, and what they change."""

import sys
from pathlib import Path

import pytest

from tests.surface.cli_kit import Call

pytestmark = pytest.mark.usefixtures("shop")
DECLARED = """

app.schedule("nightly", "0 3 * * *", greet.request("ann"), tz="Europe/Berlin", catch_up="none")
"""


@pytest.fixture
def declared(shop: str, here: Path) -> None:
    """The app declares a schedule."""
    module = here / f"{shop.partition(':')[0]}.py"
    module.write_text(module.read_text() + DECLARED)
    del sys.modules[module.stem]


def create(call: Call, *options: str) -> str:
    answer = call("schedule", "create", "hourly", "0 * * * *", "greet", '{"name": "bob"}', *options)
    assert answer.code == 0, answer.err
    return answer.out


def events(call: Call) -> list[tuple[str, str, str | None]]:
    found = call("operations", "--json").json
    return [(each["event"], each["actor"], each["reason"]) for each in reversed(found)]


# ---------------------------------------------------------------- list
def test_empty_list_says_how_to_create_a_schedule(call: Call) -> None:
    assert "There are no schedules" in call("schedules").err


@pytest.mark.usefixtures("declared")
def test_list_shows_source_ticks_and_pause(call: Call) -> None:
    create(call, "--by", "eve")
    call("schedule", "pause", "hourly", "--by", "bob", "--reason", "moving")
    header, hourly, nightly = (" ".join(line.split()) for line in call("schedules").lines)
    assert header == "name kind cron catch up last tick next tick note"
    assert hourly.startswith("hourly greet 0 * * * * last created or changed by operator:eve; paused by")
    assert hourly.endswith("operator:bob: moving; no live worker has greet")
    assert nightly.startswith("nightly greet 0 3 * * * Europe/Berlin none 20")
    assert nightly.endswith("as declared; no live worker declares it")


def test_list_is_printed_as_json(call: Call) -> None:
    create(call, "--queue", "slow", "--tag", "a=b", "--delay", "5m")
    (one,) = call("schedules", "--json").json
    assert (one["name"], one["payload"], one["source"], one["changed_by"]) == (
        "hourly", {"name": "bob", "times": 1}, "run time", "operator:olga"
    )  # fmt: skip
    assert one["options"] == {"queue": "slow", "delay": 300.0, "tags": {"a": "b"}}
    assert (one["workers"], one["last_tick"], one["paused_at"]) == (0, None, None)


# ---------------------------------------------------------------- change
def test_schedule_is_created_changed_paused_resumed_run_and_deleted(call: Call) -> None:
    """Each change is an operation with its actor and reason."""
    said = create(call, "--tz", "Europe/Berlin", "--catch-up", "all", "--reason", "new")
    assert said.startswith("schedule hourly is created; next tick 20")
    answer = call("schedule", "change", "hourly", "--cron", "30 * * * *", "--by", "bob")
    assert answer.out.startswith("schedule hourly is changed; next tick 20")
    assert call("schedule", "pause", "hourly").out == "schedule hourly is paused\n"
    assert call("schedule", "pause", "hourly").out == "schedule hourly was already paused\n"
    id = call("schedule", "run", "hourly").out.strip()
    assert call("show", id, "--json").json["job"]["payload"] == {"name": "bob", "times": 1}
    assert call("schedule", "resume", "hourly").out.startswith("schedule hourly is resumed; next tick 20")
    assert call("schedule", "resume", "hourly").out == "schedule hourly was not paused\n"
    assert call("schedule", "delete", "hourly", "--reason", "old").out == "schedule hourly is deleted\n"
    assert events(call) == [
        ("create", "operator:olga", "new"),
        ("change", "operator:bob", None),
        ("pause", "operator:olga", None),
        ("run", "operator:olga", None),
        ("resume", "operator:olga", None),
        ("delete", "operator:olga", "old"),
    ]


def test_job_of_run_names_the_operator(call: Call) -> None:
    """Its history says who enqueued it."""
    create(call)
    id = call("schedule", "run", "hourly", "--by", "eve").out.strip()
    (entry,) = call("show", id, "--json").json["history"]
    assert (entry["event"], entry["actor"]) == ("enqueue", "operator:eve")


def test_unique_key_is_kept_for_a_time(call: Call) -> None:
    """--unique-for is an option of create and change."""
    create(call, "--unique-key", "all", "--unique-for", "1h")
    assert call("schedules", "--json").json[0]["options"] == {"unique_key": "all", "unique_for": 3600.0}
    assert call("schedule", "change", "hourly", "--unique-for", "2h").code == 0
    assert call("schedules", "--json").json[0]["options"] == {"unique_key": "all", "unique_for": 7200.0}


def test_change_keeps_values_that_are_not_given(call: Call) -> None:
    """Options stay with another payload; another kind starts without them."""
    create(call, "--queue", "slow", "--priority", "7")
    call("schedule", "change", "hourly", "--payload", '{"name": "eve"}')
    call("schedule", "change", "hourly", "--priority", "9")
    (one,) = call("schedules", "--json").json
    assert (one["kind"], one["payload"]) == ("greet", {"name": "eve", "times": 1})
    assert one["options"] == {"queue": "slow", "priority": 9}
    assert call("schedule", "change", "hourly", "--kind", "send", "--payload", '{"parcel": 4}').code == 0
    (one,) = call("schedules", "--json").json
    assert (one["kind"], one["payload"], one["options"], one["cron"]) == ("send", {"parcel": 4}, {}, "0 * * * *")


@pytest.mark.usefixtures("declared")
def test_declared_schedule_is_changed_and_reset(call: Call) -> None:
    assert call("schedule", "change", "nightly", "--tz", "UTC").code == 0
    assert "changed by operator:olga" in call("schedules").out
    assert call("schedule", "reset", "nightly").out == "schedule nightly is as declared\n"
    assert call("schedule", "reset", "nightly").out == "schedule nightly was as declared\n"
    answer = call("schedule", "delete", "nightly")
    assert (answer.code, "pause it, or remove it from the code" in answer.sentence) == (1, True)


def test_pause_needs_no_app(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the commands that make a request need the code."""
    create(call)
    url = call("schedules", "--json")
    assert url.code == 0
    assert call("schedule", "run", "hourly").code == 0
    monkeypatch.delenv("INTERLOCK_APP")
    assert "This command needs your app" in call("schedule", "run", "hourly").sentence


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("create", "h", "0 * * *", "greet", '{"name": "bob"}'), "give five fields"),
        (("create", "h", "0 * * * *", "greet", "[]"), "The payload is not a JSON object"),
        (("create", "h", "0 * * * *", "grt"), "This app has no kind 'grt': it has greet, send"),
        (("create", "h", "0 * * * *", "greet", "{}"), "name"),
        (("change", "h", "--cron", "0 * * * *"), "There is no schedule h."),
        (("change", "h", "--payload", "{}"), "There is no schedule h."),
        (("change", "h", "--kind", "send"), "give --payload with --kind"),
        (("change", "h"), "Give what to change"),
        (("pause", "h"), "There is no schedule h."),
    ],
    ids=str,
)
def test_invalid_command_prints_one_sentence(call: Call, arguments: tuple[str, ...], said: str) -> None:
    answer = call("schedule", *arguments)
    assert answer.code in (1, 2)
    assert said in answer.sentence


def test_status_shows_paused_schedules(call: Call) -> None:
    """The exit code stays 0."""
    create(call)
    call("schedule", "pause", "hourly", "--reason", "moving")
    answer = call("status")
    assert answer.code == 0
    (line,) = [line for line in answer.lines if line.startswith("The schedule hourly was paused at 20")]
    assert line.endswith("UTC by operator:olga: moving")
    assert [one["name"] for one in call("status", "--json").json["paused_schedules"]] == ["hourly"]
