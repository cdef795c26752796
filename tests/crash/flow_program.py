"""A worker that kills itself at a statement: `python -m tests.crash.flow_program URL SCHEMA N`.

It dies by SIGKILL right before the nth statement that resolves dependencies or claims jobs with limits. With 0 it lives
until no job is due. Each job that runs adds a row to the table `ran`, in the transaction that ends it.
"""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from interlock import App, Fail, Job, Run, Tx
from interlock.store.postgres.flow import PostgresFlowQueries
from interlock.store.postgres.limited_claim import PostgresLimitedQueries
from interlock.store.sqlite.flow import SqliteFlowQueries
from interlock.store.sqlite.limited_claim import SqliteLimitedQueries

PARTS = 4


def build(url: str, schema: str, lease: float = 1.0) -> App[Tx]:
    app = App(url, schema=schema)

    @app.job(lease=lease, max_running_per_key=1)
    async def part(run: Run, n: int) -> int:
        if n < 0:
            raise Fail("bad part")
        return n

    @app.job(lease=lease, rate="1000/s")
    async def final(run: Run) -> int:
        return len(await run.results(part))

    @final.commit
    def note(tx: Tx, job: Job, value: int) -> None:
        tx.execute(f"INSERT INTO ran VALUES ('{job.id}', {value})")

    return app


def store_flow(app: App[Tx], *, bad: int = 0) -> dict[str, str]:
    """Store a fan-out of parts and one final job for each policy. Returns the ids of the final jobs."""
    part, final = app.kinds["part"], app.kinds["final"]
    with app.transaction() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS ran (job text, value int)")
    with app.flow("import") as flow:
        requests = [part.using(concurrency_key=f"k{n % 2}").request(n) for n in range(PARTS - bad)]
        parts = flow.batch("parts", [*requests, *(part.request(-1) for _ in range(bad))])
        handles = {policy: flow.add(final.request(), after=[parts], on_failed=policy) for policy in ("run", "cancel")}
        handles["after"] = flow.add(final.request(), after=[handles["run"]])
    return {name: handle.id for name, handle in handles.items()}


def die_at(number: int) -> None:
    """Kill this process right before the nth statement."""
    numbers = count(1)

    def counted(run: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
        def wrapped(*args: Any, **kwargs: Any) -> Sequence[Any]:
            if next(numbers) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return run(*args, **kwargs)

        return wrapped

    for queries in (PostgresFlowQueries, PostgresLimitedQueries, SqliteFlowQueries, SqliteLimitedQueries):
        queries._run = counted(queries._run)  # type: ignore[method-assign]
    for limited in (PostgresLimitedQueries,):
        limited.commit = counted(limited.commit)  # type: ignore[method-assign,assignment,arg-type]


def main(url: str, schema: str, number: str) -> None:
    app = build(url, schema)
    if int(number):
        die_at(int(number))
    app.run_until_idle()


if __name__ == "__main__":
    main(*sys.argv[1:])
