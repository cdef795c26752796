"""Options of `interlock worker` about the life of its process: its end, its limits, its probes and its code."""

from dataclasses import dataclass
from typing import Annotated

import typer

from ..telemetry.endpoint import Address
from ..worker.recycle import RecycleLimits
from .arguments import address, plain_seconds, size
from .worker_pages import Addresses

ChildProcessesOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Child processes for kinds with process=True, in each process; by default the number of cores.",
    ),
]
DrainOption = Annotated[
    str,
    typer.Option(
        metavar="SECONDS",
        help="How long running jobs have to end after a signal; then the worker returns them to the queue.",
    ),
]
MaxJobsOption = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Recycle the worker after this many jobs; child processes, too."),
]
MaxMemoryOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", help="Recycle the worker when it uses more memory, as in 512M or 2G; child processes, too."
    ),
]
HealthOption = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Serve /healthz and /readyz, as in :8080 for this machine only, or 0.0.0.0:8080 for other machines.",
    ),
]
ReloadOption = Annotated[
    bool,
    typer.Option("--reload", help="For development: restart when a Python file in this directory or below it changes."),
]


@dataclass(frozen=True, slots=True)
class LifeOptions:
    """The values of these options."""

    drain: float
    limits: RecycleLimits
    addresses: Addresses
    reload: bool

    @classmethod
    def parse(
        cls,
        *,
        drain: str,
        max_jobs: int | None,
        max_memory: str | None,
        health: str | None,
        metrics: Address | None,
        reload: bool,
    ) -> "LifeOptions":
        """Parse the options. Raises `CommandError`."""
        return cls(
            plain_seconds(drain, "--drain"),
            RecycleLimits(max_jobs, size(max_memory, "--max-memory")),
            Addresses(metrics, address(health, "--health")),
            reload,
        )
