"""`interlock demo`: what the kernel promises, shown with real processes that are killed and frozen."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from ...ids import uuid7
from .. import screen
from ..target import Miscalled, knock
from .story import Story


def demo(
    fast: Annotated[bool, typer.Option("--fast", help="Shorter leases, and no pauses for reading.")] = False,
    postgres: Annotated[str | None, typer.Option(metavar="URL", help="Run on this server, in a schema of its own that is dropped at the end.")] = None,
) -> None:
    """Kill a holder inside its commit, freeze another, and count what happened: forty jobs, on a new SQLite file.

    Exits with 0 only if every job succeeded once, nothing was doubled, and verify finds every rule kept.
    """
    if postgres is None:
        file = Path(tempfile.mkdtemp(prefix="interlock-demo-")) / "demo.db"
        story = Story(f"sqlite:///{file}", "interlock", fast)
        clean = story.tell(f"interlock jobs --database sqlite:///{file}")
    else:
        if not postgres.startswith("postgres"):
            raise Miscalled("--postgres needs the address of a server: write it as postgresql://user@host/name.")
        knock(postgres)
        story = Story(postgres, f"interlock_demo_{uuid7()[-12:]}", fast)
        try:
            clean = story.tell("interlock lifecycle standard")
        finally:
            story.drop()
    if not clean:
        screen.complain("the demo did not end as it should.")
        raise typer.Exit(1)
