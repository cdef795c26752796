"""Promises about the commands for pictures: ordered, listed, shown, followed, saved and rejected, by name or by the beginning of an id."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from apps.common.tests.commands import Call
from apps.studio import ordering
from apps.studio.counter import Counter, Created
from apps.studio.order import Params
from apps.studio.tests.commands.kit import NO_ID, PATIENCE, ROOT, Work, once, ordered, refused
from apps.studio.tests.images_api import FakeImages
from apps.studio.tests.images_controls import Fault


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
