"""Huey on SQLite: write-ahead log and fsync=True, so that a commit survives a power failure."""

import os
import sys
from collections.abc import Sequence

from huey import SqliteHuey

from benchmarks.peers.programs.channel import Reporter, serve

huey = SqliteHuey(filename=os.environ["PEERS_DATABASE_URL"].removeprefix("sqlite:///"), fsync=True)
reporter = Reporter()


@huey.task()
def plain(n: int) -> None:
    reporter.ran(n)


class HueyClient:
    def one_by_one(self, numbers: Sequence[int]) -> None:
        for n in numbers:
            plain(n)

    def in_bulk(self, numbers: Sequence[int]) -> None:
        """Huey has no call for many jobs."""
        self.one_by_one(numbers)


if __name__ == "__main__" and sys.argv[1] == "client":
    serve(HueyClient())
elif __name__ == "__main__" and sys.argv[1] == "worker":
    huey.create_consumer(workers=1, initial_delay=0.01, max_delay=0.1, periodic=False).run()
