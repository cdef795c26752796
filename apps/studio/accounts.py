"""Commands about people and their credits."""

from typing import Annotated

import typer

from apps.common.telling import as_json, moment, plain, remark, say, table, width

from .desk import PROGRAM, staffed
from .ledger import Balance
from .telling import JsonOption, amount

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="What they are called.")]

lists = typer.Typer(rich_markup_mode=None)
users = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The studio's users.")
purse = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Their credits.")


# ---------------------------------------------------------------- people
@users.command("add", short_help="Add a user, and print their access key")
def add_user(
    name: NameArgument,
    admin: Annotated[bool, typer.Option("--admin", help="They may review dead letters.")] = False,
    given: Annotated[int, typer.Option("--credits", metavar="N", min=0, help="Credits to begin with.")] = 0,
) -> None:
    """Add a user, and print the access key with which they sign in.

    The key is shown this once. Only its hash is stored.
    """
    with staffed() as desk:
        user = desk.people.add(name, admin=admin, credits=given)
    remark(f"{user.name} is user {user.id}, with {amount(given)}. Whoever has this access key is taken for them, and it is shown only now:")
    say(str(user.key))
    remark(f"Next: start the studio with `{PROGRAM} run`, open the address that it prints, and sign in with the key.")


@users.command("key", short_help="Give a user another access key")
def rekey_user(name: NameArgument) -> None:
    """Give a user another access key, and print it. The old one ends at once, and with it every browser that is signed in."""
    with staffed() as desk:
        user = desk.people.rekey(name)
    remark(f"{user.name} has another access key. The old one has ended, and this one is shown only now:")
    say(str(user.key))


@lists.command("users", short_help="List the users")
def list_users(json: JsonOption = False) -> None:
    """List the users with their credits. Nobody's key is shown: only its hash is stored."""
    with staffed() as desk:
        everybody = [(user, desk.people.balance(user.id)) for user in desk.people.all()]
    if json:
        say(as_json([{"id": user.id, "name": user.name, "admin": user.admin, "credits": balance} for user, balance in everybody], indent=2))
    else:
        rows = [(user.id, user.name, "yes" if user.admin else "", balance.available, balance.reserved) for user, balance in everybody]
        say(table(("id", "name", "admin", "available", "reserved"), rows, width=width(), cut=["name"]))


# ---------------------------------------------------------------- credits
@purse.command("grant", short_help="Give a user credits")
def grant(
    name: NameArgument,
    credits: Annotated[int, typer.Argument(metavar="N", min=1, help="How many.")],
    note: Annotated[str, typer.Option(metavar="TEXT", help="What for; it stands in the ledger.")] = "",
) -> None:
    """Give a user credits."""
    with staffed() as desk:
        balance = desk.people.grant(name, credits, note or None)
    say(plain(f"{name} was given {amount(credits)}: {_told(balance)}."))


@purse.command("show", short_help="Show a user's credits and their ledger")
def show_credits(name: NameArgument, json: JsonOption = False) -> None:
    """Show how a user's credits stand, and the newest entries of their ledger."""
    with staffed() as desk:
        user = desk.people.named(name)
        balance, entries = desk.people.balance(user.id), desk.people.statement(user.id)
    if json:
        say(as_json({"balance": balance, "entries": entries}, indent=2))
        return
    say(plain(f"{user.name} was granted {amount(balance.granted)}: {_told(balance)}."))
    if entries:
        rows = [(moment(line.at), line.entry, line.amount, line.job_id, line.note) for line in entries]
        say(table(("at", "entry", "amount", "job", "note"), rows, width=width(), cut=["note", "job"]))


def _told(balance: Balance) -> str:
    parts = {"available": balance.available, "reserved": balance.reserved, "captured": balance.captured, "forfeited": balance.forfeited}
    return ", ".join(f"{count} {name}" for name, count in parts.items())
