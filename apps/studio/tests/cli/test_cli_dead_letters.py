"""Promises about the commands for dead letters: each is listed, shown with what can be done, and decided about once."""

import json
import re

from apps.common.tests.commands import Call
from apps.studio.tests.commands.kit import Work, ordered, refused
from apps.studio.tests.images_api import FakeImages
from apps.studio.tests.images_controls import Fault


def buried(studio: Call, work: Work, images: FakeImages) -> str:
    images.fail(Fault.unauthorized())
    id = ordered(studio("create", "ann", "a fox"))
    work()
    return id


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
