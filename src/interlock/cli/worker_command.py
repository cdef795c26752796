"""`interlock worker`: runs one worker process, or a supervisor of several."""

import os
import socket
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from ..app import App
from ..errors import UsageError
from ..telemetry import logs
from ..telemetry.endpoint import Address
from ..worker.plan import Plan
from ..worker.supervisor_link import SupervisorLink
from .arguments import LAST_PORT, LOOPBACK, names
from .common_options import AppOption, CommandError, DatabaseOption, hide_password, open_unmigrated, require_app
from .standard_streams import Streams
from .supervisor_command import process_count, supervise
from .worker_metrics import metrics_answers, metrics_page
from .worker_options import (
    ChildProcessesOption,
    DrainOption,
    HealthOption,
    LifeOptions,
    MaxJobsOption,
    MaxMemoryOption,
    ReloadOption,
)
from .worker_pages import serve
from .worker_process import Process

WORKER_VARIABLES = "INTERLOCK_WORKER"
"""Each option can be set by an environment variable that starts like this, such as INTERLOCK_WORKER_SLOTS."""


def worker(
    context: typer.Context,
    *,
    app: AppOption = None,
    database: DatabaseOption = None,
    queues: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these queues; by default those of its kinds, and default.")
    ] = None,
    kinds: Annotated[
        str | None, typer.Option(metavar="X,Y", help="Only these kinds; by default all kinds of the app.")
    ] = None,
    processes: Annotated[
        str, typer.Option(metavar="N", help="How many worker processes; auto: one for each usable core.")
    ] = "1",
    slots: Annotated[int, typer.Option(min=1, help="How many jobs run at once in each process.")] = 100,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Threads for sync handlers in each process; by default the number of cores plus 4, at most 32.",
        ),
    ] = None,
    child_processes: ChildProcessesOption = None,
    name: Annotated[
        str | None,
        typer.Option(help="The worker's name; by default host and process id. Several processes append -1, -2, …"),
    ] = None,
    listen: Annotated[
        bool,
        typer.Option("--listen/--no-listen", help="Whether the database wakes the worker; --no-listen polls only."),
    ] = True,
    drain: DrainOption = "25",
    max_jobs: MaxJobsOption = None,
    max_memory: MaxMemoryOption = None,
    health: HealthOption = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=LAST_PORT, metavar="PORT", help="Serve Prometheus metrics on this port.")
    ] = None,
    metrics_host: Annotated[str, typer.Option(metavar="ADDRESS", help="The address to serve them on.")] = LOOPBACK,
    reload: ReloadOption = False,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log one JSON object per line.")] = False,
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
    supervisor: Annotated[
        int | None, typer.Option(hidden=True, allow_from_autoenv=False, help="The channel to the supervisor.")
    ] = None,
) -> None:
    """Run a worker, or several with --processes, until a signal stops them.

    On SIGTERM or SIGINT the worker claims no more jobs, lets running jobs finish for --drain seconds, returns the rest
    to the queue and exits with 0. A second signal ends it at once, with 128 plus the signal's number; its jobs recover
    when their leases expire. If the database is unreachable, the worker retries every 5 seconds.

    Exits with 1 if the database is not migrated for this app, the app's lifespan raised, or an address of --health or
    --metrics-port cannot be served, with 2 for wrong usage, and with 70 if it hung, so that a supervisor restarts it.
    After --max-jobs or --max-memory it lets all running jobs finish and exits with 0.

    With --processes, this process runs that many workers: it restarts a worker that ends unexpectedly, replaces one
    that reaches a limit, drains all of them on a signal, and serves their metrics and health as one. It exits with 0 if
    all drained, or else with the highest exit code.

    Each option has an environment variable, such as INTERLOCK_WORKER_SLOTS=50 for --slots 50.

    Example: interlock worker -A shop:app --queues mail,default --slots 50
    """
    worker_name = name or f"{socket.gethostname()[:40]}-{os.getpid()}"
    metrics = None if metrics_port is None else Address(metrics_host, metrics_port)
    life = LifeOptions.parse(
        drain=drain, max_jobs=max_jobs, max_memory=max_memory, health=health, metrics=metrics, reload=reload
    )
    count = process_count(processes)
    if supervisor is None and (count > 1 or life.reload):
        _configure(log_json, log_level, Streams(), worker=worker_name)
        raise typer.Exit(supervise(worker_name, count, context.obj, life))
    link = None if supervisor is None else SupervisorLink(supervisor)
    chosen = require_app(app)
    wanted = _known(chosen, names(kinds, "--kinds"))
    streams = Streams()
    _configure(log_json, log_level, streams, worker=None if link is None else worker_name)
    with ExitStack() as stack:
        if database:
            stack.enter_context(chosen.bound_to(database))
        # Report a URL that can never work now, instead of retrying it.
        open_unmigrated(chosen).close()
        stack.callback(chosen.close)
        few = {} if threads is None else {"threads": threads}
        plan = chosen.plan(
            only=wanted,
            queues=names(queues, "--queues"),
            slots=slots,
            child_processes=child_processes,
            name=worker_name,
            listen=listen,
            drain=life.drain,
            limits=life.limits,
            **few,
        ).checked()
        process = Process(plan, hide_password(chosen.database.url), streams, link)
        _connect(process, plan, life, link, stack)
        code = process.run()
    streams.flush()
    raise typer.Exit(code)


def _connect(process: Process, plan: Plan, life: LifeOptions, link: SupervisorLink | None, stack: ExitStack) -> None:
    """Make the metrics and the health of the process available to its supervisor, or serve them."""
    counts_events = life.addresses.metrics is not None
    if link is not None:
        link.start(process, process.health_answers() | (metrics_answers(plan) if counts_events else {}))
        return
    served = serve(life.addresses, metrics_page(plan) if counts_events else None, process.health)
    process.start_fields |= served.urls
    stack.callback(served.close)


def _known(app: App[Any], wanted: tuple[str, ...]) -> tuple[str, ...]:
    if unknown := [name for name in wanted if name not in app.kinds]:
        raise CommandError(
            f"--kinds names {', '.join(unknown)}, which this app does not have. It has "
            f"{', '.join(sorted(app.kinds)) or 'none'}."
        )
    return wanted


def _configure(json: bool, level: str, streams: Streams, *, worker: str | None = None) -> None:
    try:
        logs.configure(json=json, level=level, stream=streams.log(), worker=worker)
    except UsageError as error:
        raise CommandError(str(error)) from None
