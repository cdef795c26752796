"""Promises about the commands: what they print, how they exit, and that a wrong call is one sentence that changes nothing and shows no secret."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import pytest
from sqlalchemy import create_engine, text

from apps.common.tests import commands
from apps.common.tests.commands import Call, Said, called
from apps.studio import ordering
from apps.studio.assembly import assembled
from apps.studio.counter import Counter, Created
from apps.studio.main import main
from apps.studio.order import Params
from apps.studio.settings import Settings
from apps.studio.tests.images_api import FakeImages
from apps.studio.tests.images_controls import Fault

ROOT = Path(__file__).parents[3]
NO_ID = "01900000-0000-7000-8000-000000000000"
PATIENCE = 60.0
once = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""For what is decided before any database is asked."""
refused = partial(commands.refused, "studio")
Work = Callable[[], None]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, database_url: str, images: FakeImages) -> pytest.MonkeyPatch:
    """An empty directory, and settings that name an empty database and the provider of the test."""
    for name in [name for name in os.environ if name.startswith("STUDIO_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    given = {"DATABASE_URL": database_url, "PROVIDER": "openai", "API_URL": images.url, "API_KEY": images.api_key}
    for name, value in given.items():
        monkeypatch.setenv(f"STUDIO_{name}", value)
    return monkeypatch


@pytest.fixture
def call(environment: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], images: FakeImages) -> Call:
    """Run a command as a person would; nobody ever sees a traceback or a secret."""

    def run(*arguments: object) -> Said:
        said = called(main, capsys, *arguments)
        assert images.api_key not in said.out + said.err
        return said

    return run


@pytest.fixture
def studio(call: Call) -> Call:
    """The commands on a studio with a user, ann, who has five credits."""
    for arguments in (("migrate",), ("user", "add", "ann", "--credits", "5")):
        assert call(*arguments).code == 0
    return call


@pytest.fixture
def work(environment: pytest.MonkeyPatch) -> Work:
    """A worker that does all that is due."""

    def run() -> None:
        made = assembled(Settings.read())
        try:
            made.app.run_until_idle()
        finally:
            made.close()

    return run


def ordered(said: Said) -> str:
    assert said.code == 0, said.err
    return said.out.split()[0]


def buried(studio: Call, work: Work, images: FakeImages) -> str:
    images.fail(Fault.unauthorized())
    id = ordered(studio("create", "ann", "a fox"))
    work()
    return id


# ---------------------------------------------------------------- the database
def test_the_tables_are_made_once_and_the_next_step_is_said(call: Call, database_url: str) -> None:
    first, second = call("migrate"), call("migrate")
    assert first == second
    assert first.code == 0
    assert first.out.startswith(f"The studio's tables are ready at {database_url.partition(':')[0]}://")
    assert "`python -m apps.studio user add NAME --credits 20`" in first.err


@once
def test_the_file_of_the_database_is_for_its_user_alone(call: Call, environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.setenv("STUDIO_DATABASE_URL", "sqlite:///studio.db")
    before = os.umask(0o022)
    try:
        assert call("migrate").out == "The studio's tables are ready at sqlite:///studio.db.\n"
        assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.glob("studio.db*")} == {0o600}
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


@once
def test_nothing_is_made_by_looking(call: Call, environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    environment.setenv("STUDIO_DATABASE_URL", "sqlite:///none.db")
    for arguments in (("jobs",), ("users",), ("check",), ("show", NO_ID), ("dead", "list"), ("create", "ann", "a fox"), ("run",), ("serve",), ("worker",)):
        refused(call(*arguments), 1, "`python -m apps.studio migrate`")
    assert list(tmp_path.iterdir()) == []


@once
def test_a_database_that_is_away_is_one_sentence_without_its_password(call: Call, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("STUDIO_DATABASE_URL", "postgresql://studio:canary-password@127.0.0.1:1/studio")
    for command in ("migrate", "users"):
        said = call(command)
        refused(said, 1, "STUDIO_DATABASE_URL")
        assert "canary" not in said.err


# ---------------------------------------------------------------- called wrongly
@once
@pytest.mark.parametrize("command", ["migrate", "users", "check", "run", "serve", "worker"])
def test_settings_that_cannot_do_are_one_sentence(call: Call, environment: pytest.MonkeyPatch, command: str) -> None:
    environment.setenv("STUDIO_STORE", "x")
    refused(call(command), 2, "STUDIO_STORE is no setting: did you mean STUDIO_STORAGE?")
    environment.delenv("STUDIO_STORE")
    environment.setenv("STUDIO_BLOCK_LIST", "no-such-file")
    refused(call(command), 2, "STUDIO_BLOCK_LIST names 'no-such-file'")


@once
@pytest.mark.parametrize("arguments", [
    ("wrong",), ("worker", "--slots", "0"), ("run", "--http", "nowhere"), ("user", "add"), ("credits", "grant", "ann", "0"),
    ("credits", "grant", "ann", "many"), ("user", "add", "bob", "--credits", "-1"),
    ("create", "ann", "a fox", "--size", "1x1"), ("create", "ann", "a fox", "--seed", "-1"), ("show", "1"),
    ("show", "' OR 1=1"), ("reject", NO_ID), ("jobs", "--limit", "0"),
])
def test_a_wrong_call_exits_with_2_and_changes_nothing(studio: Call, arguments: tuple[str, ...]) -> None:
    assert studio(*arguments).code == 2
    assert json.loads(studio("jobs", "--json").out) == []
    assert len(json.loads(studio("users", "--json").out)) == 1


@once
def test_a_port_that_is_taken_is_one_sentence(studio: Call, images: FakeImages) -> None:
    refused(studio("serve", "--http", httpx.URL(images.url).netloc.decode()), 1, "Nobody can listen at ")


@once
def test_help_names_every_command(call: Call) -> None:
    said = call("--help")
    assert said.code == 0
    names = ("migrate", "user", "users", "credits", "create", "follow", "jobs", "show", "save", "reject", "dead", "check", "run", "serve", "worker")
    assert [name for name in names if not re.search(rf"^  {name} ", said.out, re.MULTILINE)] == []


# ---------------------------------------------------------------- people and credits
def test_an_access_key_is_printed_once_and_alone(studio: Call, database_url: str) -> None:
    said = studio("user", "add", "bob", "--admin")
    key = said.out.removesuffix("\n")
    assert re.fullmatch(r"studio_[\w-]{43}", key)
    assert "bob is user 2, with 0 credits." in said.err
    assert key not in said.err
    assert key not in studio("users").out + studio("users", "--json").out
    engine = create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        assert key not in str(connection.execute(text("SELECT * FROM studio_users")).all())
    engine.dispose()


def test_another_key_is_another(studio: Call) -> None:
    first, second = studio("user", "key", "ann").out, studio("user", "key", "ann").out
    assert first != second
    refused(studio("user", "key", "bob"), 1, "There is no user 'bob'")


def test_users_are_listed_with_their_credits(studio: Call) -> None:
    studio("user", "add", "bob", "--admin")
    assert [line.split() for line in studio("users").out.splitlines()[1:]] == [["1", "ann", "5", "0"], ["2", "bob", "yes", "0", "0"]]
    listed = json.loads(studio("users", "--json").out)
    assert [(user["name"], user["admin"], user["credits"]["available"]) for user in listed] == [("ann", False, 5), ("bob", True, 0)]


def test_credits_are_given_and_shown(studio: Call) -> None:
    said = studio("credits", "grant", "ann", "7", "--note", "a present")
    assert said.out == "ann was given 7 credits: 12 available, 0 reserved, 0 captured, 0 forfeited.\n"
    shown = studio("credits", "show", "ann").out.splitlines()
    assert shown[0] == "ann was granted 12 credits: 12 available, 0 reserved, 0 captured, 0 forfeited."
    assert "a present" in shown[2]
    assert [entry["amount"] for entry in json.loads(studio("credits", "show", "ann", "--json").out)["entries"]] == [7, 5]
    refused(studio("credits", "grant", "bob", "7"), 1, "There is no user 'bob'")


# ---------------------------------------------------------------- pictures
def test_a_picture_is_ordered_shown_and_saved(studio: Call, work: Work, tmp_path: Path, images: FakeImages) -> None:
    said = studio("create", "ann", "a fox", "--size", "1536x1024", "--seed", "7")
    id = ordered(said)
    assert said.out == f"{id} is queued; 2 credits set aside, 3 left\n"
    assert "start one with `python -m apps.studio run`" in said.err
    refused(studio("save", id, "fox.png"), 1, "is queued, so there is no picture")
    work()
    ended = studio("follow", id)
    assert (ended.code, ended.out) == (0, f"completed: the picture is at studio-files/originals/{id}\n")
    assert studio("save", id, "fox.png").code == 0
    assert (tmp_path / "fox.png").read_bytes() == (tmp_path / "studio-files" / "originals" / id).read_bytes()
    refused(studio("save", id, "fox.png"), 2, "There is a file 'fox.png' already")
    refused(studio("save", id, "none/fox.png"), 2, "cannot be written")
    for directory in ("", ".", tmp_path):
        refused(studio("save", id, directory), 2, "is a directory: give the name of a file")
    assert [(asked.prompt, asked.size) for asked in images.asked] == [("a fox", "1536x1024")]


def test_the_same_order_within_a_minute_is_found_again(studio: Call) -> None:
    """Unless the minute ended in between: then it is a new one, as the key says."""
    said = [studio("create", "ann", "a fox") for _ in range(3)]
    assert len({ordered(each) for each in said}) <= 2
    assert sum("was ordered already: queued" in each.out for each in said) >= 1


def test_jobs_are_listed_newest_first_for_people_and_for_programs(studio: Call) -> None:
    studio("user", "add", "bob", "--credits", "5")
    ids = [ordered(studio("create", name, prompt)) for name, prompt in (("ann", "a fox"), ("bob", "a hen"), ("ann", "two\nlines"))]
    lines = studio("jobs").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ids[::-1]
    assert lines[0].split() == ["id", "created", "status", "user", "size", "cost", "prompt"]
    assert re.search(r" \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC  queued ", lines[1])
    assert lines[1].endswith("two lines")
    assert [job["prompt"] for job in json.loads(studio("jobs", "--json", "--user", "bob").out)] == ["a hen"]
    assert [job["id"] for job in json.loads(studio("jobs", "--json", "--limit", "1").out)] == ids[:1:-1]
    refused(studio("jobs", "--user", "eve"), 1, "There is no user 'eve'")


def test_a_long_prompt_is_cut_for_people_and_whole_for_programs(studio: Call) -> None:
    prompt = "a fox and " * 20
    id = ordered(studio("create", "ann", prompt))
    assert studio("jobs").out.splitlines()[1].endswith(f"  {prompt[:59]}…")
    assert json.loads(studio("jobs", "--json").out)[0]["prompt"] == prompt.strip()
    assert prompt.strip() in studio("show", id).out


def test_a_job_is_known_by_the_beginning_of_its_id(studio: Call, work: Work) -> None:
    id = ordered(studio("create", "ann", "a fox"))
    work()
    shown = studio("show", id[:8]).out
    told = dict(re.findall(r"^(\S+) +(.+)$", shown, re.MULTILINE))
    assert (told["id"], told["user"], told["stored_at"]) == (id, "ann", f"studio-files/originals/{id}")
    known = json.loads(studio("show", id.upper(), "--json").out)
    assert (known["status"], known["user"], known["prompt"], known["seed"]) == ("completed", "ann", "a fox", None)
    refused(studio("show", NO_ID), 1, f"There is no job {NO_ID}: `jobs` shows all there are.")


def test_an_id_that_means_several_is_refused(studio: Call) -> None:
    """Ids begin with their moment, in steps of a minute or so: of three that are made at once, two begin alike."""
    begun = [ordered(studio("create", "ann", prompt))[:8] for prompt in ("a fox", "a hen", "a hare")]
    refused(studio("show", max(begun, key=begun.count)), 2, "give more of the id")


def test_what_is_refused_is_one_sentence_and_deducts_nothing(studio: Call, environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "words").write_text("dark tower\n", encoding="utf-8")
    environment.setenv("STUDIO_BLOCK_LIST", "words")
    refused(studio("create", "ann", "the Dark Tower"), 1, "words in it that are not drawn here")
    refused(studio("create", "ann", " "), 1, "The prompt says nothing")
    refused(studio("create", "bob", "a fox"), 1, "There is no user 'bob'")
    for number in range(5):
        ordered(studio("create", "ann", f"fox {number}"))
    refused(studio("create", "ann", "one too many"), 1, "The price is 1, and of your credits 0 can be used")
    assert json.loads(studio("credits", "show", "ann", "--json").out)["balance"]["reserved"] == 5


@once
@pytest.mark.parametrize("case", [
    ("raise RuntimeError('the model\\nis away')", "RuntimeError: the model is away"), ("return False", "bool"), ("return 7", "int"),
])
def test_a_moderator_that_does_not_judge_is_told_to_the_operator(
    studio: Call, environment: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, case: tuple[str, str],
) -> None:
    body, logged = case
    (tmp_path / "moderation_that_fails.py").write_text(f"def judge(prompt):\n    {body}\n", encoding="utf-8")
    environment.syspath_prepend(tmp_path)
    environment.delitem(sys.modules, "moderation_that_fails", raising=False)
    environment.setenv("STUDIO_MODERATOR", "moderation_that_fails:judge")
    refused(studio("create", "ann", "a fox"), 1, "nothing was ordered")
    [record] = [record for record in caplog.records if record.name == "studio"]
    assert record.levelname == "WARNING"
    assert logged in record.getMessage()
    assert json.loads(studio("jobs", "--json").out) == []
    # Whoever runs it alone has no log but stderr.
    command = [sys.executable, "-m", "apps.studio", "create", "ann", "a fox"]
    alone = subprocess.run(command, env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (alone.returncode, alone.stdout) == (1, "")
    assert logged in alone.stderr
    assert "Traceback" not in alone.stderr


@once
def test_trouble_with_the_provider_says_where_it_is_and_what_to_look_at(studio: Call, work: Work, environment: pytest.MonkeyPatch, images: FakeImages) -> None:
    images.fail(Fault.trouble(503))
    busy = ordered(studio("create", "ann", "a fox"))
    work()
    near = httpx.URL(images.url).netloc.decode()
    assert f"The provider at {near}, which is STUDIO_API_URL, cannot answer now (status 503)" in studio("show", busy).out
    environment.setenv("STUDIO_API_URL", "http://127.0.0.1:1/v1")
    away = ordered(studio("create", "ann", "a hen"))
    work()
    told = studio("show", away).out
    assert "The provider at 127.0.0.1:1 could not be reached, or broke off (ConnectError): see STUDIO_API_URL.\n" in told
    assert images.api_key not in told


def test_following_tells_each_change_once(studio: Call, work: Work, environment: pytest.MonkeyPatch, images: FakeImages) -> None:
    images.fail(Fault.blocked())
    looks = iter([lambda: None, work])
    environment.setattr(ordering.time, "sleep", lambda _: next(looks)())
    said = studio("create", "ann", "a fox", "--follow")
    assert said.code == 1
    first, last = said.out.splitlines()
    assert first.endswith(" is queued; 1 credit set aside, 4 left")
    assert last.startswith("rejected: ")
    assert "SAFE_BLOCK" in last


def test_a_new_job_is_said_to_be_queued_however_quick_a_worker_is(studio: Call, work: Work, environment: pytest.MonkeyPatch) -> None:
    create_job = Counter.create_job

    def with_a_quick_worker(counter: Counter, user: int, prompt: str, params: Params) -> Created:
        made = create_job(counter, user, prompt, params)
        work()
        return made

    environment.setattr(Counter, "create_job", with_a_quick_worker)
    first, last = studio("create", "ann", "a fox", "--follow").out.splitlines()
    assert first.endswith(" is queued; 1 credit set aside, 4 left")
    assert last.startswith("completed: ")


def test_ctrl_c_ends_the_looking_and_not_the_job(studio: Call, environment: pytest.MonkeyPatch) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    environment.setattr(ordering.time, "sleep", interrupted)
    id = ordered(studio("create", "ann", "a fox"))
    said = studio("follow", id)
    assert (said.code, said.out) == (130, "queued\n")
    assert "The job goes on" in said.err


def test_an_order_that_waits_is_rejected_and_its_credits_are_kept(studio: Call, work: Work) -> None:
    id = ordered(studio("create", "ann", "a fox"))
    assert studio("reject", id, "--reason", "no foxes").out == f"{id} is rejected; 1 credit is kept.\n"
    assert json.loads(studio("credits", "show", "ann", "--json").out)["balance"]["forfeited"] == 1
    refused(studio("reject", id, "--reason", "no foxes"), 1, f"studio: Job {id} is not rejected: it is rejected.\n")
    done = ordered(studio("create", "ann", "a hen"))
    work()
    refused(studio("reject", done, "--reason", "no hens"), 1, f"studio: Job {done} is not rejected: it is completed.\n")
    assert studio("check").code == 0


# ---------------------------------------------------------------- dead letters
def test_a_dead_letter_is_listed_shown_and_driven_again(studio: Call, work: Work, images: FakeImages) -> None:
    id = buried(studio, work, images)
    listed = studio("dead", "list")
    assert [line.split()[:3] for line in listed.out.splitlines()[1:]] == [[id, "ann", "open"]]
    assert "dead redrive ID" in listed.err
    assert "STUDIO_API_KEY" in studio("dead", "show", id).out
    assert studio("dead", "list", "--all").out == listed.out
    again = studio("dead", "redrive", id, "--reason", "the key is mended")
    new = again.out.removesuffix(".\n").split()[-1]
    assert (again.code, again.out) == (0, f"{id} is ordered anew as {new}.\n")
    work()
    assert studio("follow", new).code == 0
    assert json.loads(studio("dead", "list", "--json").out) == []
    shown = json.loads(studio("dead", "show", id, "--json").out)
    assert (shown["decision"], shown["successor"]) == ("redriven", new)
    assert [letter["job"]["id"] for letter in json.loads(studio("dead", "list", "--all", "--json").out)] == [id]
    for command in ("redrive", "close"):
        refused(studio("dead", command, id), 1, f"studio: Somebody has decided about job {id} already: it was driven again as {new}.\n")
    assert studio("check").code == 0


def test_a_dead_letter_is_shown_with_what_can_be_done(studio: Call, work: Work, images: FakeImages) -> None:
    id = buried(studio, work, images)
    shown = studio("dead", "show", id)
    told = dict(re.findall(r"^(\S+) +(.+)$", shown.out, re.MULTILINE))
    assert (told["user"], told["size"], told["cost"], told["tries"], told["decision"]) == ("ann", "1024x1024", "1 credit", "1", "open")
    assert {"ordered", "buried"} < {*told}
    assert len({re.match(r"\S+ +", line).end() for line in shown.out.splitlines()}) == 1  # type: ignore[union-attr]
    for command in ("redrive", "close"):
        assert f"`python -m apps.studio dead {command} {id}`" in shown.err
    assert studio("dead", "close", id).code == 0
    assert studio("dead", "show", id).err == ""


def test_without_dead_letters_that_is_said(studio: Call, work: Work, images: FakeImages) -> None:
    assert studio("dead", "list").out == "Nothing waits for a decision.\n"
    assert studio("dead", "list", "--all").out == "There is no dead letter.\n"
    assert json.loads(studio("dead", "list", "--json").out) == []
    id = buried(studio, work, images)
    studio("dead", "close", id)
    assert studio("dead", "list").out == "Nothing waits for a decision.\n"


def test_a_dead_letter_is_closed_once(studio: Call, work: Work, images: FakeImages) -> None:
    id = buried(studio, work, images)
    assert studio("dead", "close", id, "--note", "never mind").out == f"{id} is closed.\n"
    assert "never mind" in studio("dead", "show", id).out
    for command in ("redrive", "close"):
        refused(studio("dead", command, id), 1, f"studio: Somebody has decided about job {id} already: it was closed.\n")
    assert json.loads(studio("credits", "show", "ann", "--json").out)["balance"]["available"] == 5


def test_what_is_no_dead_letter_is_not_reviewed(studio: Call, work: Work) -> None:
    id = ordered(studio("create", "ann", "a fox"))
    for state, move in (("queued", work), ("completed", work)):
        refused(studio("dead", "redrive", id), 1, f"studio: Job {id} is not driven again: it is {state}.\n")
        for command in ("show", "close"):
            refused(studio("dead", command, id), 1, f"There is no dead letter {id}")
        assert json.loads(studio("jobs", "--json").out)[0]["status"] == state
        move()


# ---------------------------------------------------------------- the books
def test_the_check_counts_what_it_has_seen(studio: Call, work: Work) -> None:
    ordered(studio("create", "ann", "a fox"))
    work()
    said = studio("check")
    assert (said.code, said.out) == (0, "All is well: 3 entries of the ledger and 1 job.\n")


def test_the_check_names_each_fault_and_exits_with_1(studio: Call, work: Work, database_url: str) -> None:
    id = ordered(studio("create", "ann", "a fox"))
    work()
    engine = create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM studio_assets"))
    engine.dispose()
    said = studio("check")
    assert said.code == 1
    assert said.out == f"Job {id} of ann is completed, and has no asset.\n"
    assert "Nothing was changed." in said.err


# ---------------------------------------------------------------- what runs for long
@once
def test_the_studio_runs_until_a_signal_and_makes_pictures(studio: Call, tmp_path: Path) -> None:
    """With the provider of a fresh machine, in a process of its own."""
    id = ordered(studio("create", "ann", "a fox in the snow"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "STUDIO_PROVIDER": "local"}
    command = [sys.executable, "-m", "apps.studio", "run", "--http", "127.0.0.1:0", "--slots", "1"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            said = [process.stdout.readline().strip() for _ in range(4)]
            assert said[3] == "the worker is ready"
            assert said[:2] == ["making up to 1 picture at once with the local provider", "the originals are in studio-files"]
            assert httpx.get(said[2].removeprefix("listening at ") + "/health", timeout=PATIENCE).status_code == 200
            assert studio("follow", id).code == 0
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
            stopping, *end = process.stdout.read().splitlines()
            assert end == ["listening no more"]
            assert stopping == (
                "stopping: what runs may finish for up to 25 s, and the rest is given back; a second signal ends it at once, at the price of a try")
        finally:
            process.kill()
    assert (tmp_path / "studio-files" / "originals" / id).read_bytes().startswith(b"\x89PNG")


def no_run(*_: object, **given: object) -> None:
    """In the place of what would run until a signal."""
    if isinstance(http := given["http"], socket.socket):
        http.close()


@once
@pytest.mark.parametrize("command", ["run", "worker"])
def test_a_storage_that_cannot_be_used_is_one_sentence_at_the_start(studio: Call, environment: pytest.MonkeyPatch, tmp_path: Path, command: str) -> None:
    environment.setattr("apps.studio.serving.until_signal", no_run)
    (tmp_path / "taken").write_text("a file", encoding="utf-8")
    for storage in ("taken", "taken/below"):
        environment.setenv("STUDIO_STORAGE", storage)
        said = studio(command) if command == "worker" else studio(command, "--http", "127.0.0.1:0")
        refused(said, 1, f"STUDIO_STORAGE names '{storage}', which cannot be used.")


@once
def test_a_bucket_that_is_away_is_a_remark_and_the_studio_runs(studio: Call, environment: pytest.MonkeyPatch) -> None:
    """It may come back, and its jobs wait for it."""
    environment.setattr("apps.studio.serving.until_signal", no_run)
    for name, value in (("STORAGE", "s3://pictures"), ("S3_ENDPOINT", "http://127.0.0.1:1"), ("S3_ACCESS_KEY", "x"), ("S3_SECRET_KEY", "canary-secret")):
        environment.setenv(f"STUDIO_{name}", value)
    said = studio("worker")
    assert said.code == 0
    assert "The storage cannot be used" in said.err
    assert "canary" not in said.err
