"""Procrastinate: psycopg's async connector and concurrent sub-workers."""

import asyncio
import os
import sys
from collections.abc import Sequence

from procrastinate import App, PsycopgConnector

from benchmarks.peers.programs.channel import Reporter, serve

app = App(connector=PsycopgConnector(conninfo=os.environ["PEERS_DATABASE_URL"]))
reporter = Reporter()


@app.task(name="plain")
async def plain(n: int) -> None:
    reporter.ran(n)


class ProcrastinateClient:
    def __init__(self, runner: asyncio.Runner) -> None:
        self.runner = runner
        runner.run(self._open())

    async def _open(self) -> None:
        await app.open_async()

    def one_by_one(self, numbers: Sequence[int]) -> None:
        self.runner.run(self._one_by_one(numbers))

    async def _one_by_one(self, numbers: Sequence[int]) -> None:
        for n in numbers:
            await plain.defer_async(n=n)

    def in_bulk(self, numbers: Sequence[int]) -> None:
        self.runner.run(plain.batch_defer_async(*({"n": n} for n in numbers)))


async def install() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def work() -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=30)


if __name__ == "__main__":
    with asyncio.Runner() as runner:
        if sys.argv[1] == "client":
            serve(ProcrastinateClient(runner))
        else:
            runner.run(install() if sys.argv[1] == "install" else work())
