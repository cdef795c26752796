"""The command `answer`, and what other commands show of a job that waits for an answer."""

import re
import sys
from pathlib import Path

import pytest

from interlock import App
from interlock.cli import output
from tests.kit import Place
from tests.surface.cli_kit import Call, enqueued

BLOG = """
from interlock import App, Question, SyncRun

app = App({url!r}, schema={schema!r}, secret="a secret of 24 characters")


@app.job
def publish(run: SyncRun, article: int) -> Question[bool]:
    return run.ask(timeout=3600)
"""


@pytest.fixture
def waiting(place: Place, here: Path, call: Call, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a job that waits for an answer."""
    (here / "blog.py").write_text(BLOG.format(url=place.url, schema=place.schema))
    assert call("migrate", "-A", "blog:app").code == 0
    monkeypatch.setenv("INTERLOCK_APP", "blog:app")
    id = enqueued(call, "publish", '{"article": 7}')
    app: App = sys.modules["blog"].app
    app.run_until_idle()
    app.close()
    return id


def test_operator_answers_a_job(call: Call, waiting: str) -> None:
    """The history says who answered and why. Without --by, it is the login name."""
    answer = call("answer", waiting, "true", "--reason", "the mail was lost")
    assert (answer.code, answer.out, answer.err) == (0, f"{waiting} is answered: SUCCEEDED\n", "")
    shown = call("show", waiting, "--json").json
    last = shown["history"][-1]
    assert (shown["job"]["result"], last["actor"], last["reason"]) == (True, "operator:olga", "the mail was lost")


def test_answer_prints_the_job_as_json(call: Call, waiting: str) -> None:
    assert call("answer", waiting[:20], "false", "--by", "ann", "--json").json["result"] is False


@pytest.mark.parametrize(
    ("value", "code", "why"),
    [
        ("yes", 2, "The answer is not JSON"),
        ('"perhaps"', 1, "publish got an answer that its annotation does not allow"),
    ],
)
def test_wrong_answer_is_refused(call: Call, waiting: str, value: str, code: int, why: str) -> None:
    answer = call("answer", waiting, value)
    assert (answer.code, why in answer.sentence) == (code, True)
    assert call("show", waiting, "--json").json["job"]["phase"] == "running"


def test_second_answer_is_refused(call: Call, waiting: str) -> None:
    call("answer", waiting, "true")
    answer = call("answer", waiting, "false")
    assert (answer.code, "cannot be answered: it has ended in SUCCEEDED" in answer.sentence) == (1, True)


def test_answer_needs_the_app(call: Call, waiting: str, monkeypatch: pytest.MonkeyPatch, place: Place) -> None:
    """Only the app can check the answer and run the commit function."""
    monkeypatch.delenv("INTERLOCK_APP")
    answer = call("answer", waiting, "true", "--database", place.url)
    assert (answer.code, answer.sentence) == (
        2,
        "This command needs your app: give -A MODULE:APP, or set INTERLOCK_APP.",
    )


def test_explain_and_show_say_that_the_job_waits_for_an_answer(call: Call, waiting: str) -> None:
    """`show` names the question's terms, which are no result."""
    assert "It waits for an answer until" in call("explain", waiting).out
    shown = " ".join(call("show", waiting, "--full").out.split())
    assert 'question {"timeout": 3600.0}' in shown
    assert "result" not in shown


def test_terminal_says_until_when_the_job_waits(call: Call, waiting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker has a lease on it."""
    monkeypatch.setattr(output, "terminal_width", lambda: 200)
    shown = call("show", waiting).out
    assert re.search(r"waits for an answer until 20\d\d-\d\d-\d\d \d\d:\d\d", shown)
    assert "leased until" not in shown
