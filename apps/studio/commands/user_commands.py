"""Commands for users and their credits."""

from typing import Annotated

import typer

from apps.common.formatting import format_table, format_time, plain_text, say, terminal_width, to_json, warn

from ..formatting import JsonOption, format_credits
from ..ledger import Balance
from ..service import PROGRAM, open_service

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The user's name.")]

list_commands = typer.Typer(rich_markup_mode=None)
user_commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Manage users.")
credit_commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Manage credits.")


# ---------------------------------------------------------------- users
@user_commands.command("add", short_help="Add a user and print their access key")
def add_user(
    name: NameArgument,
    admin: Annotated[bool, typer.Option("--admin", help="Allow the user to review dead letters.")] = False,
    given: Annotated[int, typer.Option("--credits", metavar="N", min=0, help="Credits to grant.")] = 0,
) -> None:
    """Add a user and print the access key with which they sign in.

    The key is printed only once; the database stores only its hash.
    """
    with open_service() as service:
        user = service.users.add(name, admin=admin, credits=given)
    warn(
        f"Added {user.name} as user {user.id} with {format_credits(given)}. "
        "Keep this key secret. It will not be shown again:"
    )
    say(str(user.key))
    warn(f"Next: start the studio with `{PROGRAM} run`, open the address that it prints, and sign in with this key.")


@user_commands.command("key", short_help="Replace a user's access key")
def rekey_user(name: NameArgument) -> None:
    """Replace a user's access key and print the new one. The old key and all of the user's sessions end at once."""
    with open_service() as service:
        user = service.users.replace_key(name)
    warn(f"Replaced the access key of {user.name}. Keep the new key secret. It will not be shown again:")
    say(str(user.key))


@list_commands.command("users", short_help="List the users")
def list_users(json: JsonOption = False) -> None:
    """List the users with their credits."""
    with open_service() as service:
        everybody = [(user, service.users.balance(user.id)) for user in service.users.all()]
    if json:
        say(
            to_json(
                [
                    {"id": user.id, "name": user.name, "admin": user.admin, "credits": balance}
                    for user, balance in everybody
                ],
                indent=2,
            )
        )
    else:
        rows = [
            (user.id, user.name, "yes" if user.admin else "", balance.available, balance.reserved)
            for user, balance in everybody
        ]
        say(format_table(("id", "name", "admin", "available", "reserved"), rows, width=terminal_width(), cut=["name"]))


# ---------------------------------------------------------------- credits
@credit_commands.command("grant", short_help="Grant credits to a user")
def grant(
    name: NameArgument,
    credits: Annotated[int, typer.Argument(metavar="N", min=1, help="The number of credits.")],
    note: Annotated[str, typer.Option(metavar="TEXT", help="A note for the ledger.")] = "",
) -> None:
    """Grant credits to a user."""
    with open_service() as service:
        balance = service.users.grant(name, credits, note or None)
    say(plain_text(f"Granted {format_credits(credits)} to {name}: {_format_balance(balance)}."))


@credit_commands.command("show", short_help="Show a user's credits and their ledger")
def show_credits(name: NameArgument, json: JsonOption = False) -> None:
    """Show a user's balance and the newest entries of their ledger."""
    with open_service() as service:
        user = service.users.named(name)
        balance, entries = service.users.balance(user.id), service.users.statement(user.id)
    if json:
        say(to_json({"balance": balance, "entries": entries}, indent=2))
        return
    say(plain_text(f"{user.name} was granted {format_credits(balance.granted)}: {_format_balance(balance)}."))
    if entries:
        rows = [(format_time(line.at), line.entry, line.amount, line.job_id, line.note) for line in entries]
        say(format_table(("at", "entry", "amount", "job", "note"), rows, width=terminal_width(), cut=["note", "job"]))


def _format_balance(balance: Balance) -> str:
    parts = {
        "available": balance.available,
        "reserved": balance.reserved,
        "captured": balance.captured,
        "forfeited": balance.forfeited,
    }
    return ", ".join(f"{count} {name}" for name, count in parts.items())
