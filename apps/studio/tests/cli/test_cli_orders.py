"""Commands for orders: create, list, show, follow, save and reject."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from apps.common.tests.command_runner import RunCommand
from apps.studio.commands import order_commands
from apps.studio.order import Params
from apps.studio.orders import Created, Orders
from apps.studio.tests.cli.cli_kit import NO_ID, ROOT, TIME_LIMIT, Work, once, ordered, refused
from apps.studio.tests.fake_images_api import FakeImages
from apps.studio.tests.fake_images_controls import Fault


# ---------------------------------------------------------------- pictures
def test_picture_is_ordered_shown_and_saved(studio: RunCommand, work: Work, tmp_path: Path, images: FakeImages) -> None:
    said = studio("create", "ann", "a fox", "--size", "1536x1024", "--seed", "7")
    id = ordered(said)
    assert said.out == f"{id} is queued; 2 credits reserved, 3 left\n"
    assert "Start one with `python -m apps.studio run`" in said.err
    refused(studio("save", id, "fox.png"), 1, "is queued, so it has no picture")
    work()
    ended = studio("follow", id)
    assert (ended.code, ended.out) == (0, f"completed: the picture is at studio-files/originals/{id}\n")
    assert studio("save", id, "fox.png").code == 0
    assert (tmp_path / "fox.png").read_bytes() == (tmp_path / "studio-files" / "originals" / id).read_bytes()
    refused(studio("save", id, "fox.png"), 2, "The file 'fox.png' already exists")
    refused(studio("save", id, "none/fox.png"), 2, "Cannot write")
    for directory in ("", ".", tmp_path):
        refused(studio("save", id, directory), 2, "is a directory. Give a file name")
    assert [(asked.prompt, asked.size) for asked in images.asked] == [("a fox", "1536x1024")]


def test_same_order_within_a_minute_is_the_same_job(studio: RunCommand) -> None:
    """If the minute ends between two commands, there are two jobs."""
    said = [studio("create", "ann", "a fox") for _ in range(3)]
    assert len({ordered(each) for each in said}) <= 2
    assert sum("was already ordered: queued" in each.out for each in said) >= 1


def test_jobs_are_listed_newest_first_as_table_and_json(studio: RunCommand) -> None:
    studio("user", "add", "bob", "--credits", "5")
    ids = [
        ordered(studio("create", name, prompt))
        for name, prompt in (("ann", "a fox"), ("bob", "a hen"), ("ann", "two\nlines"))
    ]
    lines = studio("jobs").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ids[::-1]
    assert lines[0].split() == ["id", "created", "status", "user", "size", "cost", "prompt"]
    assert re.search(r" \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC  queued ", lines[1])
    assert lines[1].endswith("two lines")
    assert [job["prompt"] for job in json.loads(studio("jobs", "--json", "--user", "bob").out)] == ["a hen"]
    assert [job["id"] for job in json.loads(studio("jobs", "--json", "--limit", "1").out)] == ids[:1:-1]
    refused(studio("jobs", "--user", "eve"), 1, "There is no user 'eve'")


def test_long_prompt_is_shortened_in_the_table_but_not_in_json(studio: RunCommand) -> None:
    prompt = "a fox and " * 20
    id = ordered(studio("create", "ann", prompt))
    assert studio("jobs").out.splitlines()[1].endswith(f"  {prompt[:59]}…")
    assert json.loads(studio("jobs", "--json").out)[0]["prompt"] == prompt.strip()
    assert prompt.strip() in studio("show", id).out


def test_job_is_found_by_a_prefix_of_its_id(studio: RunCommand, work: Work) -> None:
    id = ordered(studio("create", "ann", "a fox"))
    work()
    shown = studio("show", id[:8]).out
    told = dict(re.findall(r"^(\S+) +(.+)$", shown, re.MULTILINE))
    assert (told["id"], told["user"], told["stored_at"]) == (id, "ann", f"studio-files/originals/{id}")
    known = json.loads(studio("show", id.upper(), "--json").out)
    assert (known["status"], known["user"], known["prompt"], known["seed"]) == ("completed", "ann", "a fox", None)
    refused(studio("show", NO_ID), 1, f"No job has the ID {NO_ID}. `jobs` lists all jobs.")


def test_ambiguous_prefix_is_refused(studio: RunCommand) -> None:
    """IDs begin with their time, so IDs of the same minute share a prefix."""
    begun = [ordered(studio("create", "ann", prompt))[:8] for prompt in ("a fox", "a hen", "a hare")]
    refused(studio("show", max(begun, key=begun.count)), 2, "Give a longer prefix")


def test_refused_order_is_one_sentence_and_deducts_nothing(
    studio: RunCommand, environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "words").write_text("dark tower\n", encoding="utf-8")
    environment.setenv("STUDIO_BLOCK_LIST", "words")
    refused(studio("create", "ann", "the Dark Tower"), 1, "contains blocked words")
    refused(studio("create", "ann", " "), 1, "Enter a prompt")
    refused(studio("create", "bob", "a fox"), 1, "There is no user 'bob'")
    for number in range(5):
        ordered(studio("create", "ann", f"fox {number}"))
    refused(studio("create", "ann", "one too many"), 1, "This picture costs 1 credit; you have 0")
    assert json.loads(studio("credits", "show", "ann", "--json").out)["balance"]["reserved"] == 5


@once
@pytest.mark.parametrize(
    ("case", "in_a_process"),
    [
        (("raise RuntimeError('the model\\nis unreachable')", "RuntimeError: the model is unreachable"), True),
        (("return False", "bool"), False),
        (("return 7", "int"), False),
    ],
)
def test_failing_moderator_is_logged_for_the_operator(
    studio: RunCommand,
    environment: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    case: tuple[str, str],
    *,
    in_a_process: bool,
) -> None:
    body, logged = case
    (tmp_path / "moderation_that_fails.py").write_text(f"def judge(prompt):\n    {body}\n", encoding="utf-8")
    environment.syspath_prepend(tmp_path)
    environment.delitem(sys.modules, "moderation_that_fails", raising=False)
    environment.setenv("STUDIO_MODERATOR", "moderation_that_fails:judge")
    refused(studio("create", "ann", "a fox"), 1, "Nothing was ordered")
    [record] = [record for record in caplog.records if record.name == "studio"]
    assert record.levelname == "WARNING"
    assert logged in record.getMessage()
    assert json.loads(studio("jobs", "--json").out) == []
    if not in_a_process:
        return
    # In its own process, the log goes to stderr.
    command = [sys.executable, "-m", "apps.studio", "create", "ann", "a fox"]
    alone = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
        check=False,
    )
    assert (alone.returncode, alone.stdout) == (1, "")
    assert logged in alone.stderr
    assert "Traceback" not in alone.stderr


@once
def test_provider_error_names_the_address_and_the_setting(
    studio: RunCommand, work: Work, environment: pytest.MonkeyPatch, images: FakeImages
) -> None:
    images.fail(Fault.trouble(503))
    busy = ordered(studio("create", "ann", "a fox"))
    work()
    near = httpx.URL(images.url).netloc.decode()
    assert f"The provider at {near} (STUDIO_API_URL) is unavailable (status 503)" in studio("show", busy).out
    environment.setenv("STUDIO_API_URL", "http://127.0.0.1:1/v1")
    away = ordered(studio("create", "ann", "a hen"))
    work()
    told = studio("show", away).out
    assert (
        "The provider at 127.0.0.1:1 is unreachable or closed the connection (ConnectError). Check STUDIO_API_URL.\n"
        in told
    )
    assert images.api_key not in told


def test_follow_prints_each_change_once(
    studio: RunCommand, work: Work, environment: pytest.MonkeyPatch, images: FakeImages
) -> None:
    images.fail(Fault.blocked())
    looks = iter([lambda: None, work])
    environment.setattr(order_commands.time, "sleep", lambda _: next(looks)())
    said = studio("create", "ann", "a fox", "--follow")
    assert said.code == 1
    first, last = said.out.splitlines()
    assert first.endswith(" is queued; 1 credit reserved, 4 left")
    assert last.startswith("rejected: ")
    assert "SAFE_BLOCK" in last


def test_new_job_is_printed_as_queued_even_if_a_worker_is_faster(
    studio: RunCommand, work: Work, environment: pytest.MonkeyPatch
) -> None:
    create_job = Orders.create_job

    def with_a_quick_worker(orders: Orders, user: int, prompt: str, params: Params) -> Created:
        made = create_job(orders, user, prompt, params)
        work()
        return made

    environment.setattr(Orders, "create_job", with_a_quick_worker)
    first, last = studio("create", "ann", "a fox", "--follow").out.splitlines()
    assert first.endswith(" is queued; 1 credit reserved, 4 left")
    assert last.startswith("completed: ")


def test_ctrl_c_stops_following_but_not_the_job(studio: RunCommand, environment: pytest.MonkeyPatch) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    environment.setattr(order_commands.time, "sleep", interrupted)
    id = ordered(studio("create", "ann", "a fox"))
    said = studio("follow", id)
    assert (said.code, said.out) == (130, "queued\n")
    assert "The job continues" in said.err


def test_queued_order_is_rejected_without_a_refund(studio: RunCommand, work: Work) -> None:
    id = ordered(studio("create", "ann", "a fox"))
    assert studio("reject", id, "--reason", "no foxes").out == f"Rejected {id}; 1 credit is not refunded.\n"
    assert json.loads(studio("credits", "show", "ann", "--json").out)["balance"]["forfeited"] == 1
    refused(
        studio("reject", id, "--reason", "no foxes"),
        1,
        f"studio: Job {id} cannot be rejected: it is rejected, not queued.\n",
    )
    done = ordered(studio("create", "ann", "a hen"))
    work()
    refused(
        studio("reject", done, "--reason", "no hens"),
        1,
        f"studio: Job {done} cannot be rejected: it is completed, not queued.\n",
    )
    assert studio("check").code == 0
