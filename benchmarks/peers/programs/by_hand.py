"""A queue written by hand: one table, and one effect row for each job, written in the transaction that ends it."""

import os
import signal
import sys
import threading
from collections.abc import Sequence

import psycopg

from benchmarks.peers.programs.channel import Reporter, serve

URL = os.environ["PEERS_DATABASE_URL"]
CLAIM = (
    "UPDATE queue SET done = true WHERE id IN (SELECT id FROM queue WHERE NOT done ORDER BY id LIMIT %s "
    "FOR UPDATE SKIP LOCKED) RETURNING id, n"
)
EFFECT = "INSERT INTO effects (job, n) VALUES (%s, %s)"
WAIT = 0.01
"""Seconds between two claims of an idle loop."""


class Loops:
    """Threads that claim jobs and commit each with its effect, until SIGTERM."""

    def __init__(self, batch: int) -> None:
        self.batch, self.stopped, self.reporter, self.lock = batch, threading.Event(), Reporter(), threading.Lock()

    def run(self, threads: int) -> None:
        signal.signal(signal.SIGTERM, lambda *_: self.stopped.set())
        started = [threading.Thread(target=self._loop) for _ in range(threads)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()

    def _loop(self) -> None:
        with psycopg.connect(URL) as conn:
            while not self.stopped.is_set():
                if not self._transaction(conn):
                    self.stopped.wait(WAIT)

    def _transaction(self, conn: psycopg.Connection) -> int:
        with conn.transaction():
            claimed = conn.execute(CLAIM, (self.batch,), prepare=True).fetchall()
            for job, n in claimed:
                if self.batch == 1:
                    conn.execute(EFFECT, (job, n))
                else:
                    with conn.transaction():
                        conn.execute(EFFECT, (job, n))
        with self.lock:
            for _ in claimed:
                self.reporter.ran(0)
        return len(claimed)


class ByHandClient:
    def __init__(self) -> None:
        self.conn = psycopg.connect(URL, autocommit=True)

    def one_by_one(self, numbers: Sequence[int]) -> None:
        for n in numbers:
            self.conn.execute("INSERT INTO queue (n) VALUES (%s)", (n,))

    def in_bulk(self, numbers: Sequence[int]) -> None:
        self.conn.execute("INSERT INTO queue (n) SELECT unnest(%s::bigint[])", (list(numbers),))


def install() -> None:
    with psycopg.connect(URL, autocommit=True) as conn:
        conn.execute(
            "CREATE TABLE queue (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, n bigint NOT NULL, "
            "done boolean NOT NULL DEFAULT false)"
        )
        conn.execute("CREATE INDEX queue_ready ON queue (id) WHERE NOT done")


if __name__ == "__main__":
    if sys.argv[1] == "install":
        install()
    elif sys.argv[1] == "client":
        serve(ByHandClient())
    else:
        Loops(batch=int(sys.argv[3])).run(threads=int(sys.argv[2]))
