"""The demo's own small program: a shop that charges orders.

Each charge is a row of the shop's own table, and nothing there stands in the way of a second one, so that doubles are counted, not claimed.
"""

from dataclasses import dataclass

from ...app import App
from ...kind import Kind
from ...lifecycle import Lifecycle, builtin
from ...move import Move, decide
from ...outcome import Outcome
from ...records import Lease
from ...run import SyncRun
from ...store import Tx
from ...stores import OpenStore

QUEUE = "default"


@dataclass(frozen=True, slots=True)
class Effects:
    """What the shop's table says."""

    applied: int
    doubled: int


class Shop:
    """A database with one kind of job in it, `charge`, and the table that its commits write."""

    def __init__(self, url: str, schema: str, lease: float) -> None:
        self.app = App(url, schema=schema)
        self.table = f"{schema}.charges" if url.startswith("postgres") else "charges"
        self.lifecycle: Lifecycle = builtin("standard")
        self.charge: Kind[[int], str] = self.app.job(kind="charge", lease=lease)(_charge)

    @property
    def store(self) -> OpenStore:
        return self.app.database.store()

    def open(self) -> None:
        """Make the tables: ours and the shop's own."""
        self.app.migrate()
        with self.app.transaction() as tx:
            tx.execute(f"CREATE TABLE {self.table} (job_id text NOT NULL, holder text NOT NULL)")

    def claim(self, by: str, limit: int) -> list[Lease]:
        return self.store.claim(by, self.charge.ways(self.charge.declaration.version(self.store)), [QUEUE], limit)

    def decide(self, lease: Lease, outcome: Outcome) -> Move:
        """What becomes of a held job, by the rules of its kind."""
        return decide(self.lifecycle, lease.job, lease, outcome, self.charge.policy, 0.5, actor=lease.owner)

    def apply(self, tx: Tx, job_id: str, by: str) -> None:
        """The effect. It runs inside the transaction of the job's own commit."""
        place = "%s" if "." in self.table else "?"
        tx.execute(f"INSERT INTO {self.table} (job_id, holder) VALUES ({place}, {place})", (job_id, by))  # noqa: S608 - the name is ours

    def effects(self) -> Effects:
        with self.app.transaction() as tx:
            counts = [row[0] for row in tx.execute(f"SELECT count(*) FROM {self.table} GROUP BY job_id").fetchall()]  # noqa: S608 - as above
        return Effects(sum(counts), sum(count - 1 for count in counts))


def _charge(run: SyncRun, order: int) -> str:
    del run
    return f"charged {order}"
