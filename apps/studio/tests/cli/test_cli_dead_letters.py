"""Commands for dead letters: list, show, redrive and close."""

import json
import re

from apps.common.tests.command_runner import RunCommand
from apps.studio.tests.cli.cli_kit import Work, ordered, refused
from apps.studio.tests.fake_images_api import FakeImages
from apps.studio.tests.fake_images_controls import Fault


def buried(studio: RunCommand, work: Work, images: FakeImages) -> str:
    images.fail(Fault.unauthorized())
    id = ordered(studio("create", "ann", "a fox"))
    work()
    return id


def test_dead_letter_is_listed_shown_and_redriven(studio: RunCommand, work: Work, images: FakeImages) -> None:
    id = buried(studio, work, images)
    listed = studio("dead", "list")
    assert [line.split()[:3] for line in listed.out.splitlines()[1:]] == [[id, "ann", "open"]]
    assert "dead redrive ID" in listed.err
    assert "STUDIO_API_KEY" in studio("dead", "show", id).out
    assert studio("dead", "list", "--all").out == listed.out
    again = studio("dead", "redrive", id, "--reason", "the key is fixed")
    new = again.out.removesuffix(".\n").split()[-1]
    assert (again.code, again.out) == (0, f"Ordered {id} again as {new}.\n")
    work()
    assert studio("follow", new).code == 0
    assert json.loads(studio("dead", "list", "--json").out) == []
    shown = json.loads(studio("dead", "show", id, "--json").out)
    assert (shown["decision"], shown["successor"]) == ("redriven", new)
    assert [letter["job"]["id"] for letter in json.loads(studio("dead", "list", "--all", "--json").out)] == [id]
    for command in ("redrive", "close"):
        refused(
            studio("dead", command, id),
            1,
            f"studio: Job {id} was already redriven as {new}.\n",
        )
    assert studio("check").code == 0


def test_dead_letter_is_shown_with_the_next_steps(studio: RunCommand, work: Work, images: FakeImages) -> None:
    id = buried(studio, work, images)
    shown = studio("dead", "show", id)
    told = dict(re.findall(r"^(\S+) +(.+)$", shown.out, re.MULTILINE))
    assert (told["user"], told["size"], told["cost"], told["tries"], told["decision"]) == (
        "ann",
        "1024x1024",
        "1 credit",
        "1",
        "open",
    )
    assert {"ordered", "buried"} < {*told}
    assert len({re.match(r"\S+ +", line).end() for line in shown.out.splitlines()}) == 1  # type: ignore[union-attr]
    for command in ("redrive", "close"):
        assert f"`python -m apps.studio dead {command} {id}`" in shown.err
    assert studio("dead", "close", id).code == 0
    assert studio("dead", "show", id).err == ""


def test_empty_list_is_reported(studio: RunCommand, work: Work, images: FakeImages) -> None:
    assert studio("dead", "list").out == "No dead letters to review.\n"
    assert studio("dead", "list", "--all").out == "There are no dead letters.\n"
    assert json.loads(studio("dead", "list", "--json").out) == []
    id = buried(studio, work, images)
    studio("dead", "close", id)
    assert studio("dead", "list").out == "No dead letters to review.\n"


def test_dead_letter_is_closed_once(studio: RunCommand, work: Work, images: FakeImages) -> None:
    id = buried(studio, work, images)
    assert studio("dead", "close", id, "--note", "never mind").out == f"Closed {id}.\n"
    assert "never mind" in studio("dead", "show", id).out
    for command in ("redrive", "close"):
        refused(studio("dead", command, id), 1, f"studio: Job {id} was already closed.\n")
    assert json.loads(studio("credits", "show", "ann", "--json").out)["balance"]["available"] == 5


def test_only_dead_letters_can_be_reviewed(studio: RunCommand, work: Work) -> None:
    id = ordered(studio("create", "ann", "a fox"))
    for state, move in (("queued", work), ("completed", work)):
        refused(
            studio("dead", "redrive", id),
            1,
            f"studio: Job {id} cannot be redriven: it is {state}, not a dead letter.\n",
        )
        for command in ("show", "close"):
            refused(studio("dead", command, id), 1, f"No dead letter has the ID {id}")
        assert json.loads(studio("jobs", "--json").out)[0]["status"] == state
        move()
