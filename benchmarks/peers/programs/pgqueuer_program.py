"""PgQueuer: asyncpg and uvloop, one connection for the worker, and the recommended autovacuum settings."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.peers.programs.channel import Reporter, serve

URL = os.environ["PEERS_DATABASE_URL"]
BATCH_SIZE = 250
"""Measured: as fast as 1,000, with less CPU; 50 and 3,000 are slower."""


class PgQueuerClient:
    def __init__(self, runner: asyncio.Runner) -> None:
        self.runner = runner
        self.queries = Queries(AsyncpgDriver(runner.run(asyncpg.connect(URL))))

    def one_by_one(self, numbers: Sequence[int]) -> None:
        self.runner.run(self._one_by_one(numbers))

    async def _one_by_one(self, numbers: Sequence[int]) -> None:
        for n in numbers:
            await self.queries.enqueue("plain", b"%d" % n)

    def in_bulk(self, numbers: Sequence[int]) -> None:
        count = len(numbers)
        self.runner.run(self.queries.enqueue(["plain"] * count, [b"%d" % n for n in numbers], [0] * count))


async def install() -> None:
    queries = Queries(AsyncpgDriver(await asyncpg.connect(URL)))
    await queries.install()
    await queries.optimize_autovacuum()


async def work() -> None:
    reporter, manager = Reporter(), PgQueuer.from_asyncpg_connection(await asyncpg.connect(URL))

    @manager.entrypoint("plain")
    async def plain(job: Job) -> None:
        reporter.ran(int(job.payload or b"0"))

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, manager.shutdown.set)
    await manager.run(batch_size=BATCH_SIZE)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if sys.argv[1] == "client":
            serve(PgQueuerClient(runner))
        else:
            runner.run(install() if sys.argv[1] == "install" else work())
