"""Promises about the commands for people, their credits and the books: a key is shown once, and what does not add up is named."""

import json
import re

from sqlalchemy import create_engine, text

from apps.common.tests.commands import Call
from apps.studio.tests.commands.kit import Work, ordered, refused


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
