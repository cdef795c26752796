"""The commands that enqueue, list, show and cancel jobs."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from interlock.cli import output as screen
from interlock.cli.job_commands import PAGE
from interlock.store.postgres.inspect import PostgresInspect
from interlock.store.sqlite.inspect import SqliteInspect
from tests.kit import Place
from tests.surface.cli_kit import Call, enqueued


# ---------------------------------------------------------------- jobs
def test_job_is_enqueued_listed_shown_and_cancelled(call: Call, shop: str) -> None:
    """`verify` finds no violation at the end."""
    id = enqueued(
        call, "greet", '{"name": "ann"}', "--tag", "team=a", "--priority", "3", "--delay", "1h", "--queue", "slow"
    )
    listed = call("jobs").lines
    assert listed[0].split()[:4] == ["id", "kind", "state", "attempt"]
    assert listed[1].split()[:6] == [id, "greet", "PENDING", "0", "3/3", "slow"]
    shown = call("show", id).out
    assert '{"name": "ann", "times": 1}' in shown
    assert "slow, priority 3" in shown
    assert "team=a" in shown
    assert call("cancel", id, "--reason", "no more").out == f"{id} ended as CANCELLED\n"
    assert call("cancel", id).out == f"{id} had already ended as CANCELLED\n"
    shown = call("show", id)
    assert shown.lines[-1].split()[2:] == ["1", "1", "cancel", "PENDING", "CANCELLED", "operator:olga", "no", "more"]
    assert "ABORTED" in shown.out
    assert call("verify").out == "1 job checked: every rule holds.\n"


def test_json_output_is_complete(call: Call, shop: str) -> None:
    """It has everything that the tables show, and more."""
    id = enqueued(call, "greet", '{"name": "ann"}')
    assert [job["id"] for job in call("jobs", "--json").json] == [id]
    shown = call("show", id, "--json").json
    assert shown["job"]["payload"] == {"name": "ann", "times": 1}
    assert [entry["event"] for entry in shown["history"]] == ["enqueue"]
    assert call("verify", "--json").json == {"ok": True, "checked": 1, "violations": [], "left_out": 0}
    assert call("cancel", id, "--by", "ann", "--json").json["state"] == "CANCELLED"
    assert call("enqueue", "greet", '{"name": "bob"}', "--json").json["created"] is True


def test_enqueue_with_a_used_key_prints_the_existing_job(call: Call, shop: str) -> None:
    """Standard output has only the id; everything else goes to standard error."""
    first = call("enqueue", "greet", '{"name": "ann"}', "--idempotency-key", "k")
    again = call("enqueue", "greet", '{"name": "ann"}', "--idempotency-key", "k")
    assert (first.out, first.err) == (again.out, "")
    assert again.err == "A job with this key already exists.\n"
    other = call("enqueue", "greet", '{"name": "bob"}', "--idempotency-key", "k")
    assert other.code == 1
    assert "belongs to job" in other.sentence


def test_enqueue_takes_a_concurrency_key(call: Call, shop: str, here: Path) -> None:
    module = here / f"{shop.partition(':')[0]}.py"
    module.write_text(module.read_text().replace("@app.job()", "@app.job(max_running_per_key=1)"))
    del sys.modules[module.stem]
    assert call("migrate").code == 0
    id = enqueued(call, "greet", '{"name": "ann"}', "--concurrency-key", "customer:42")
    assert call("show", id, "--json").json["job"]["concurrency_key"] == "customer:42"


def test_enqueue_can_keep_and_replace_a_unique_job(call: Call, shop: str) -> None:
    """The note says what happened, and the history of the job shows it."""
    unique = ("--unique-key", "u", "--unique-for", "1h", "--delay", "1m", "--on-conflict")
    first = call("enqueue", "greet", '{"name": "ann"}', *unique, "replace")
    assert (first.code, first.err) == (0, "")
    again = call("enqueue", "greet", '{"name": "bob"}', *unique, "debounce")
    assert (again.out, again.err) == (first.out, "A waiting job with this key exists; its payload was replaced.\n")
    kept = call("enqueue", "greet", '{"name": "eve"}', *unique, "keep", "--json").json
    assert (kept["created"], kept["replaced"]) == (False, False)
    shown = call("show", first.out.strip())
    assert '{"name": "bob", "times": 1}' in shown.out
    assert "debounced" in shown.lines[-1]
    assert "give one of" in call("enqueue", "greet", '{"name": "x"}', *unique, "merge").sentence


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("greet", "{"), 2, "The payload is not JSON"),
        (("greet", "[1]"), 2, "The payload is not a JSON object"),
        (("greet", f'{{"times": {"9" * 5000}}}'), 2, "The payload is not JSON"),
        (("greet", '{"times": "many"}'), 1, "greet"),
        (("fly", "{}"), 1, "This app has no kind 'fly': it has greet, send"),
        (("greet", '{"name": "x"}', "--delay", "soon"), 2, "--delay 'soon' is not a duration"),
        (("greet", '{"name": "x"}', "--delay", "9" * 400 + "s"), 2, "--delay is longer than a hundred years"),
        (
            ("greet", '{"name": "x"}', "--delay", "90"),
            2,
            "--delay '90' is not a duration: write a number and a unit, s m h d or w",
        ),
        (("greet", '{"name": "x"}', "--delay", "1h", "--ttl", "5m"), 2, "--ttl 5m is not longer than --delay 1h"),
        (("greet", '{"name": "x"}', "--tag", "team"), 2, "--tag 'team' has no value"),
        (("greet", '{"name": "x"}', "--unique-key", "x" * 300), 1, "300 characters"),
        (("send", '{"parcel": 1}', "--ttl", "1d"), 1, "cannot have a ttl"),
    ],
)
def test_invalid_enqueue_stores_nothing(
    call: Call, shop: str, arguments: tuple[str, ...], code: int, says: str
) -> None:
    """There is one message and no job."""
    answer = call("enqueue", *arguments)
    assert says in answer.sentence
    assert answer.code == code
    assert call("jobs", "--json").json == []


def test_payload_may_come_from_standard_input(call: Call, shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a payload that is too long for a command line."""
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO('{"name": "ann", "times": 7}'))
    id = enqueued(call, "greet", "-")
    assert call("show", id, "--json").json["job"]["payload"]["times"] == 7


def test_jobs_are_filtered_and_paged(call: Call, shop: str) -> None:
    """Newest first; the hint names the next page."""
    ids = [enqueued(call, "greet", json.dumps({"name": str(n)}), "--tag", f"parity={n % 2}") for n in range(4)]
    enqueued(call, "send", '{"parcel": 1}')
    call("cancel", ids[0])

    def found(*arguments: str) -> list[str]:
        return [job["id"] for job in call("jobs", "--json", *arguments).json]

    assert found("--kind", "greet") == ids[::-1]
    assert found("--state", "CANCELLED") == found("--phase", "failed") == ids[:1]
    assert found("--tag", "parity=1") == [ids[3], ids[1]]
    assert found("--queue", "nowhere") == []
    page = call("jobs", "--kind", "greet", "--limit", "2", "--tag", "parity=1")
    assert page.err.endswith(f" jobs --kind greet --tag parity=1 --limit 2 --after {ids[1]}\n")
    assert found("--kind", "greet", "--after", ids[2]) == [ids[1], ids[0]]
    assert "is not a phase: give pending" in call("jobs", "--phase", "asleep").sentence


def test_jobs_are_filtered_by_time_and_error(call: Call, shop: str) -> None:
    """An age counts back from now, a time without a zone is in UTC, and the hint repeats the options."""
    ids = [enqueued(call, "greet", json.dumps({"name": str(n)})) for n in range(2)]
    call("cancel", ids[0], "--reason", "100% LATE")

    def found(*arguments: str) -> list[str]:
        return [job["id"] for job in call("jobs", "--json", *arguments).json]

    assert found("--since", "1h") == found("--until", "9999-01-01") == found("--since", "2020-01-01T12:00") == ids[::-1]
    assert found("--until", "1h") == found("--since", "9999-01-01T00:00+02:00") == []
    assert found("--error-like", "0% late") == ids[:1]
    assert call("jobs", "--since", "1h", "--error-like", "100% L", "--limit", "1").err.endswith(
        f" jobs --since 1h --error-like '100% L' --limit 1 --after {ids[0]}\n"
    )


def test_listing_jobs_holds_few_payloads_in_memory(call: Call, shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table reads no payloads, and JSON is written a few jobs at a time: a thousand payloads may take a gigabyte."""
    ids = [enqueued(call, "greet", json.dumps({"name": str(n)})) for n in range(25)]
    asked: list[tuple[int, bool]] = []

    def counted(read: Callable[..., Any]) -> Callable[..., Any]:
        def jobs(self: object, **given: Any) -> Any:
            asked.append((given["limit"], given.get("payloads", True)))
            return read(self, **given)

        return jobs

    for reading in (SqliteInspect, PostgresInspect):
        monkeypatch.setattr(reading, "jobs", counted(reading.jobs))
    assert ids[-1] in call("jobs", "--limit", "1000").out
    assert asked == [(1000, False)]
    listed = call("jobs", "--json", "--limit", "1000")
    assert [(job["id"], job["payload"]["name"]) for job in listed.json] == [
        (id, str(n)) for n, id in reversed(list(enumerate(ids)))
    ]
    assert listed.out == json.dumps(listed.json, indent=2) + "\n"
    assert max(limit for limit, payloads in asked if payloads) == PAGE
    assert len(call("jobs", "--json", "--limit", "13").json) == 13


def test_hint_for_the_next_page_repeats_the_options(call: Call, here: Path) -> None:
    """Quoted as a shell needs it."""
    (here / "moved.py").write_text("from interlock import App\napp = App()\n@app.job()\ndef work(run): ...")
    given = ("-A", "moved:app", "--database", "sqlite:///my jobs.db")
    call("migrate", *given)
    id = enqueued(call, "work", *given)
    assert call("jobs", *given, "--limit", "1").err.endswith(
        f" jobs -A moved:app --database 'sqlite:///my jobs.db' --limit 1 --after {id}\n"
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--after", "foo"), "--after 'foo' is not the id of a job"),
        (("--since", "yesterday"), "--since 'yesterday' is not a time: write an age such as 90s"),
        (("--until", "2026-02-30"), "--until '2026-02-30' is not a time"),
        (("--error-like", ""), "error_like is ''"),
        (("--kind", "fly"), "--kind 'fly' is not a kind of this app, which has greet, send"),
        (
            ("--state", "pending"),
            "--state 'pending' is not a state of this app's lifecycles, which have PENDING, RUNNING",
        ),
    ],
)
def test_filter_that_can_match_nothing_is_refused(call: Call, shop: str, arguments: tuple[str, ...], says: str) -> None:
    """A typing error is not reported as an empty list."""
    answer = call("jobs", *arguments)
    assert answer.code == 2
    assert says in answer.sentence


def test_cancel_records_the_logged_in_user(call: Call, shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the environment does not name the user."""
    import pwd

    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    id = enqueued(call, "greet", '{"name": "ann"}')
    call("cancel", id)
    assert call("show", id, "--json").json["history"][-1]["actor"] == f"operator:{pwd.getpwuid(os.getuid()).pw_name}"


def test_pruned_job_still_has_its_history(call: Call, shop: str, place: Place) -> None:
    """Retention deletes the job, not its history."""
    id = enqueued(call, "greet", '{"name": "ann"}')
    call("cancel", id)
    assert place.open(real_time=True).retention.prune(phase="failed", age=0, limit=10) == 1
    answer = call("show", id)
    assert answer.lines[0] == f"Job {id} was deleted by retention. Its history is kept."
    assert "CANCELLED" in answer.lines[-1]
    missing = call("show", "01890000-0000-7000-8000-000000000000")
    assert missing.code == 1
    assert "There is no job" in missing.sentence


def test_refused_cancel_says_why(call: Call, shop: str, monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
    """The job does not exist, or its cancel runs a hook that only the app has (protocol 4)."""
    assert call("cancel", "nonsense").sentence == call("show", "nonsense").sentence
    id = enqueued(call, "send", '{"parcel": 1}')
    if place.schema == "interlock":
        monkeypatch.delenv("INTERLOCK_APP")
        answer = call("cancel", id, "--database", place.url)
        assert answer.code == 1
        assert "pass -A module:app" in answer.sentence
        monkeypatch.setenv("INTERLOCK_APP", shop)
    assert call("cancel", id).code == 0


# ---------------------------------------------------------------- stored text is shown, never interpreted
def test_stored_text_cannot_control_the_terminal(call: Call, shop: str) -> None:
    """No escape sequence, markup or change of direction reaches the terminal; JSON escapes them."""
    nasty = "\x1b[2J[bold red]x[/] \u202egnp.exe \x9b1m\rover"
    id = enqueued(
        call, "greet", json.dumps({"name": nasty}), "--unique-key", "key\x1b]0;owned\x07", "--tag", "a=[blink]"
    )
    call("cancel", id, "--reason", nasty, "--by", "eve\x1b[1m")
    for answer in (call("show", id), call("jobs"), call("show", id, "--json"), call("jobs", "--json")):
        assert not {character for character in answer.out if character in "\x1b\x9b\x07\r\u202e\x7f"}
    shown = call("show", id).out
    assert "[bold red]x[/]" in shown
    assert "[blink]" in shown
    assert call("show", id, "--json").json["job"]["payload"]["name"] == nasty


def test_error_message_cannot_control_the_terminal(call: Call) -> None:
    """Text from a database or a caller is shown in the same way."""
    answer = call("lifecycle", "x\x1b[31m[bold]")
    assert "\x1b" not in answer.err
    assert "[bold]" in answer.sentence


def test_ids_are_never_shortened_in_a_pipe(call: Call, shop: str) -> None:
    """However long the other columns are."""
    id = enqueued(call, "greet", '{"name": "ann"}', "--queue", "q" * 200)
    assert call("jobs").lines[1].startswith(id)
    assert "q" * 200 in call("jobs").out


def test_sanitize_keeps_line_breaks_only_if_asked() -> None:
    """One line in a table, several in an error."""
    assert screen.sanitize("a\nb\tc") == "a b c"
    assert screen.sanitize("a\nb\x00", lines=True) == "a\nb\ufffd"
