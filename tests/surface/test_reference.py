"""The reference pages match the code; `python -m tests.surface.test_reference` regenerates them."""

import inspect
import re
import textwrap
from typing import Any

import pytest
import typer

from interlock import App, Backoff, errors
from interlock.cli import commands
from interlock.core import payload
from interlock.core.lifecycle import BUILTIN, Lifecycle
from interlock.core.lifecycle_checks import EVENTS
from interlock.jobs import spec
from interlock.jobs.kind import Kind
from interlock.maintenance import maintenance_loop as maintenance
from interlock.maintenance import scheduler
from interlock.reconcile import answer
from interlock.store import types as records
from interlock.store.contract import PARTS, Store
from interlock.worker import heartbeat as leases
from interlock.worker import poll_backoff as speed
from interlock.worker import supervisor, worker
from interlock.worker.plan import DRAIN
from tests.kit import TABLES, Place
from tests.surface.test_docs import DOCS, ROOT


# ---------------------------------------------------------------- generated sections
def store_contract() -> str:
    """Return the verbs of a store and their rules, from the docstrings."""
    verbs = [
        (f"{part}.{name}", verb)
        for part, protocol in PARTS.items()
        for name, verb in vars(protocol).items()
        if inspect.isfunction(verb) and not name.startswith("_")
    ] + [(name, verb) for name, verb in vars(Store).items() if inspect.isfunction(verb) and not name.startswith("_")]
    lines: list[str] = []
    for name, verb in verbs:
        given = ", ".join(each for each in inspect.signature(verb).parameters if each != "self")
        law = textwrap.dedent("    " + (verb.__doc__ or "")).strip()
        lines += [f"### `{name}({given})`", "", " ".join(law.split()), ""]
    return "\n".join(lines)


def all_errors() -> str:
    """Return each error with the docstring of its class."""
    every = [
        each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, errors.InterlockError)
    ]
    return "\n".join(
        [
            "| error | when |",
            "|---|---|",
            *(f"| `{each.__name__}` | {' '.join((each.__doc__ or '').split())} |" for each in every),
            "",
        ]
    )


UNSAID = {
    "@app.job(kind=)": "the function's name",
    "@app.job(lifecycle=)": "`standard`",
    "@app.job(commit_timeout=)": "the lease",
    "@app.job(key_until=)": "no state: the key is freed when the job is deleted",
    "App(retention=)": "`{'succeeded': 7 days, 'failed': None, 'audit': None}`: failed jobs and history are kept",
    "App(url=)": "`INTERLOCK_DATABASE_URL`, `DATABASE_URL`, then `sqlite:///interlock.db`",
    "App(transaction=)": "a transaction that Interlock opens",
    "App(secret=)": "`INTERLOCK_SECRET`; without one, `answer` raises, and a worker of a kind that asks does not start",
    "app.worker(child_processes=)": "the number of cores",
}


def defaults() -> str:
    """Return the default values of all options."""
    told = {
        "@app.job": App.job,
        "kind.result": Kind.result,
        "kind.reconcile": Kind.reconcile,
        "App": App.__init__,
        "app.jobs": App.jobs,
        "Backoff": Backoff.__init__,
        "app.schedule": App.schedule,
        "app.worker": App.worker,
        "app.run_until_idle": App.run_until_idle,
    }
    options = [(f"{where}({name}=)", value) for where, what in told.items() for name, value in _defaults(what)]
    rows = [
        (f"`{option}`", UNSAID.get(option) or _default(value))
        for option, value in options
        if option in UNSAID or value not in (None, (), "")
    ]
    rows += _of_a_worker()
    rows.append(("payload, as JSON", f"at most {payload.LIMIT:,} bytes, {payload.DEPTH} levels deep"))
    rows.append(("keys and names", f"at most {payload.KEY_LENGTH} characters"))
    return "\n".join(
        ["| option | default |", "|---|---|", *(f"| {option} | {default} |" for option, default in rows), ""]
    )


def _of_a_worker() -> list[tuple[str, str]]:
    return [
        ("`interlock worker --processes`", "`1`"),
        ("`interlock worker --threads`", "the number of cores plus 4, at most 32"),
        ("`interlock worker --child-processes`", "the number of cores"),
        ("interval of lease renewals", f"a third of the lease, at most {leases.LONGEST_INTERVAL:g} s"),
        ("interval of polls while no job is due", f"{speed.SHORTEST:g} s, growing to {speed.LONGEST:g} s"),
        ("interval of maintenance", f"{maintenance.EVERY:g} s"),
        ("interval of looks at schedules that were changed at run time", f"{scheduler.READ_EVERY:g} s"),
        ("interval of checks for questions whose deadline has passed", f"{spec.QUESTIONS.every:g} s"),
        ("time for which `answer` waits for a handler that still runs", f"{answer.WAIT:g} s"),
        ("time for running jobs to finish after a signal (`--drain`)", f"{DRAIN:g} s"),
        ("interval of retries while the database is unreachable", f"{worker.ERROR_WAIT:g} s"),
        (
            "pause before a worker process that ended unexpectedly starts again",
            f"{supervisor.RESTART.first:g} s, growing to {supervisor.RESTART.cap:g} s",
        ),
        ("time for which a worker counts as alive after a heartbeat", f"{records.SILENT:g} s"),
        ("`priority`", "`0`; higher first"),
    ]


def _defaults(function: Any) -> list[tuple[str, Any]]:
    return [
        (each.name, each.default)
        for each in inspect.signature(function).parameters.values()
        if each.default is not each.empty
    ]


def _default(value: Any) -> str:
    if isinstance(value, Backoff):
        return f"`Backoff({value.first:g}, factor={value.factor:g}, cap={value.cap:g}, jitter={value.jitter})`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def command_line() -> str:
    """Return the help text of each command."""
    top: Any = typer.main.get_command(commands)
    helps = [_help(top, "interlock")]
    for name, command in top.commands.items():
        inner = getattr(command, "commands", None)
        helps += (
            [_help(each, f"interlock {name} {sub}") for sub, each in inner.items()]
            if inner
            else [_help(command, f"interlock {name}")]
        )
    return "\n".join(helps)


def _help(command: Any, name: str) -> str:
    context = command.context_class(command, info_name=name, terminal_width=120, max_content_width=120)
    return f"## `{name}`\n\n```text\n{command.get_help(context).rstrip()}\n```\n"


GENERATED = {
    "store-contract.md": store_contract,
    "errors.md": all_errors,
    "defaults.md": defaults,
    "cli.md": command_line,
}
_MARK = re.compile(r"(?<=<!-- generated -->\n).*?(?=<!-- end -->)", re.DOTALL)


@pytest.mark.parametrize("name", GENERATED)
def test_reference_matches_the_code(name: str) -> None:
    """To regenerate the pages, run `python -m tests.surface.test_reference`."""
    found = _MARK.search((DOCS / "reference" / name).read_text(encoding="utf-8"))
    assert found is not None
    assert found[0].strip() == GENERATED[name]().strip()


_SECTION = re.compile(r"^## `(\w+)`[^\n]*\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def test_reference_lists_every_table_and_column(place: Place) -> None:
    """The page about tables has a section for each table of both databases, with every column."""
    place.open().registry.migrate([], [])
    text = (DOCS / "reference" / "tables.md").read_text(encoding="utf-8")
    sections = {found[1]: set(re.findall(r"`(\w+)`", found[2])) for found in _SECTION.finditer(text)}
    assert set(TABLES) <= set(sections)
    for table, named in sections.items():
        known = named | sections["jobs"] if table == "jobs_now" else named
        columns = set(place.raw.columns(table))
        assert columns <= known, f"{table} has {columns - known}, which the page lacks"


def test_reference_has_every_event() -> None:
    """The page about the lifecycle language has one row per event, in order."""
    text = (DOCS / "reference" / "lifecycle-language.md").read_text(encoding="utf-8")
    assert tuple(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == EVENTS


def test_shipped_lifecycles_are_checked_against_their_documents() -> None:
    """The three built-in lifecycles are read from the documents that explain them."""
    for name in BUILTIN:
        assert Lifecycle.load(ROOT / "src" / "interlock" / "core" / "builtin" / f"{name}.md").name == name


if __name__ == "__main__":
    for name, make in GENERATED.items():
        path = DOCS / "reference" / name
        path.write_text(
            _MARK.sub(lambda _, make=make: make() + "\n", path.read_text(encoding="utf-8")), encoding="utf-8"
        )
