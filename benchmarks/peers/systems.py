"""The measured systems: how to start each, at which settings, and how to see that it has no job left."""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
OURS = "interlock"


@dataclass(frozen=True)
class System:
    """One row of the tables."""

    name: str
    program: str
    settings: str
    """Printed below the tables."""
    pending: str | None = None
    """A query that returns true while jobs wait or run; None if the program itself answers that."""
    worker: tuple[str, ...] = ()
    """Arguments of the worker."""
    kind: str = "plain"
    warm_up: int = 1000
    share: float = 1.0
    """Share of the jobs of a drain, for systems that would need minutes."""
    history: int = 0
    """Finished jobs in its tables."""
    scheme: str = "postgresql"
    """The scheme of its database's URL."""

    @property
    def ours(self) -> bool:
        return self.program == OURS

    def command(self, role: str) -> list[str]:
        """Return the command line of a role: install, client or worker."""
        if self.ours and role == "worker":
            interlock = [str(Path(sys.executable).with_name("interlock")), "worker"]
            return [*interlock, "-A", "benchmarks.peers.programs.interlock_jobs:app", *self.worker]
        arguments = [role, *self.worker] if role == "worker" else [role, self.kind]
        if (PROGRAMS / f"{self.program}.mjs").exists():
            return [shutil.which("node") or "node", str(PROGRAMS / f"{self.program}.mjs"), *arguments]
        python = sys.executable if self.program in {OURS, "by_hand"} else str(PEERS_PYTHON)
        module = "interlock_jobs" if self.ours else self.program
        return [python, "-m", f"benchmarks.peers.programs.{module}", *arguments]

    def variables(self, url: str) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("INTERLOCK_")}
        return inherited | {"PEERS_DATABASE_URL": url, "INTERLOCK_DATABASE_URL": url}

    def share_of(self, jobs: int) -> int:
        return max(100, int(jobs * self.share))


INTERLOCK = System("Interlock", OURS, "`interlock worker`, all defaults (100 slots)")
INTERLOCK_1000 = System("Interlock, 1,000 slots", OURS, "`interlock worker --slots 1000`", worker=("--slots", "1000"))
PGQUEUER = System(
    "PgQueuer",
    "pgqueuer_program",
    "`batch_size=250`, asyncpg, uvloop, one connection for the worker, `pgq autovac`",
    pending="SELECT EXISTS (SELECT FROM pgqueuer)",
)
PROCRASTINATE = System(
    "Procrastinate",
    "procrastinate_program",
    "`concurrency=30`, psycopg with its C extension; 5 % of the jobs of a drain",
    pending="SELECT EXISTS (SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing'))",
    warm_up=100,
    share=0.05,
)
GRAPHILE = System(
    "graphile-worker",
    "graphile_worker",
    "`concurrentJobs: 24`, `maxPoolSize: 25`, `localQueue: { size: 500 }`, `completeJobBatchDelay: 0`",
    pending="SELECT EXISTS (SELECT FROM graphile_worker._private_jobs)",
)
PG_BOSS = System(
    "pg-boss",
    "pg_boss",
    "`batchSize: 1000`, `localConcurrency: 4`, `burstWhenBatchFull: true`, `useListenNotify: true`; "
    "its handler is called once per batch",
    pending="SELECT EXISTS (SELECT FROM pgboss.job WHERE state < 'completed')",
)
PEERS = (PGQUEUER, PROCRASTINATE, GRAPHILE, PG_BOSS)

COMMITTED = System(
    "Interlock, commit function", OURS, "`@kind.commit` inserts one row; all defaults", kind="committed", warm_up=100
)


def by_hand(name: str, threads: int, batch: int) -> System:
    return System(
        name,
        "by_hand",
        f"a loop in {threads} thread{'s' if threads > 1 else ''}: claim {batch}, insert one row per job"
        + (" in a savepoint each" if batch > 1 else "")
        + ", commit",
        pending="SELECT EXISTS (SELECT FROM queue WHERE NOT done)",
        worker=(str(threads), str(batch)),
        warm_up=100,
    )


BY_HAND = (
    by_hand("by hand, 1 thread", 1, 1),
    by_hand("by hand, 8 threads", 8, 1),
    by_hand("by hand, 25 per transaction", 1, 25),
)

SQLITE = System(
    "Interlock on SQLite", OURS, "`sqlite:///`, the `sqlite3` of Python, all defaults", warm_up=200, scheme="sqlite"
)
PYSQLITE = System(
    "Interlock on SQLite, pysqlite3",
    OURS,
    "`sqlite+pysqlite3:///`, all defaults",
    warm_up=200,
    scheme="sqlite+pysqlite3",
)
HUEY = System(
    "Huey", "huey_program", "`SqliteHuey(fsync=True)`, write-ahead log, one worker thread", warm_up=200, scheme="sqlite"
)
