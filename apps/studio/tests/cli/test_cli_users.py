"""Commands for users, credits and the ledger check."""

import json
import re

from sqlalchemy import create_engine, text

from apps.common.tests.command_runner import RunCommand
from apps.studio.tests.cli.cli_kit import Work, ordered, refused


# ---------------------------------------------------------------- users and credits
def test_access_key_is_printed_once_and_alone(studio: RunCommand, database_url: str) -> None:
    said = studio("user", "add", "bob", "--admin")
    key = said.out.removesuffix("\n")
    assert re.fullmatch(r"studio_[\w-]{43}", key)
    assert "Added bob as user 2 with 0 credits." in said.err
    assert key not in said.err
    assert key not in studio("users").out + studio("users", "--json").out
    engine = create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        assert key not in str(connection.execute(text("SELECT * FROM studio_users")).all())
    engine.dispose()


def test_new_key_replaces_the_old_one(studio: RunCommand) -> None:
    first, second = studio("user", "key", "ann").out, studio("user", "key", "ann").out
    assert first != second
    refused(studio("user", "key", "bob"), 1, "There is no user 'bob'")


def test_users_are_listed_with_their_credits(studio: RunCommand) -> None:
    studio("user", "add", "bob", "--admin")
    assert [line.split() for line in studio("users").out.splitlines()[1:]] == [
        ["1", "ann", "5", "0"],
        ["2", "bob", "yes", "0", "0"],
    ]
    listed = json.loads(studio("users", "--json").out)
    assert [(user["name"], user["admin"], user["credits"]["available"]) for user in listed] == [
        ("ann", False, 5),
        ("bob", True, 0),
    ]


def test_credits_are_granted_and_shown(studio: RunCommand) -> None:
    said = studio("credits", "grant", "ann", "7", "--note", "a present")
    assert said.out == "Granted 7 credits to ann: 12 available, 0 reserved, 0 captured, 0 forfeited.\n"
    shown = studio("credits", "show", "ann").out.splitlines()
    assert shown[0] == "ann was granted 12 credits: 12 available, 0 reserved, 0 captured, 0 forfeited."
    assert "a present" in shown[2]
    assert [entry["amount"] for entry in json.loads(studio("credits", "show", "ann", "--json").out)["entries"]] == [
        7,
        5,
    ]
    refused(studio("credits", "grant", "bob", "7"), 1, "There is no user 'bob'")


# ---------------------------------------------------------------- the ledger check
def test_check_counts_entries_and_jobs(studio: RunCommand, work: Work) -> None:
    ordered(studio("create", "ann", "a fox"))
    work()
    said = studio("check")
    assert (said.code, said.out) == (0, "No faults found in 3 ledger entries and 1 job.\n")


def test_check_reports_each_fault_and_exits_with_1(studio: RunCommand, work: Work, database_url: str) -> None:
    id = ordered(studio("create", "ann", "a fox"))
    work()
    engine = create_engine(database_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM studio_assets"))
    engine.dispose()
    said = studio("check")
    assert said.code == 1
    assert said.out == f"Job {id} of ann is completed, but has no asset.\n"
    assert "Nothing was changed." in said.err
