"""The app that `interlock worker` loads, and the client of Interlock. It uses the public API only."""

import sys
from collections.abc import Sequence

from benchmarks.peers.programs.channel import Reporter, serve
from interlock import App, Job, Tx

app = App()
"""INTERLOCK_DATABASE_URL names the database."""
reporter = Reporter()


@app.job
async def plain(n: int) -> None:
    reporter.ran(n)


@app.job
async def committed(n: int) -> int:
    reporter.ran(0)
    return n


@committed.commit
def write_effect(tx: Tx, job: Job, n: int) -> None:
    tx.execute("INSERT INTO effects (job, n) VALUES (%s, %s)", (job.id, n))


class InterlockClient:
    def __init__(self, kind: str) -> None:
        self.kind = {"plain": plain, "committed": committed}[kind]

    def one_by_one(self, numbers: Sequence[int]) -> None:
        for n in numbers:
            self.kind.enqueue(n)

    def in_bulk(self, numbers: Sequence[int]) -> None:
        app.enqueue_many([self.kind.request(n) for n in numbers])


if __name__ == "__main__":
    if sys.argv[1] == "install":
        app.migrate()
    else:
        serve(InterlockClient(sys.argv[2] if len(sys.argv) > 2 else "plain"))
