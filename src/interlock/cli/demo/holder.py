"""One holder of leases, as a process of its own that can be killed and frozen: it does what its standard input says, and answers in lines of JSON.

    claim N     claim so many jobs and keep them in hand
    hang        open the commit of the first one, write its effect, and never come to the end
    settle      commit what is in hand
    work N      claim and commit, so many at a time, until nothing is due
    recover     adopt what others lost, and give it back to be run again
"""

import ctypes
import json
import os
import signal
import sys
from typing import Any

from ...job import Job
from ...outcome import Lost, Returned
from ...payload import encode
from ...records import Lease, Refusal
from ...waits import SystemWaits
from .shop import Shop


class Holder:
    """Claims, decides, commits: what a worker does, by hand."""

    def __init__(self, shop: Shop, name: str) -> None:
        self.shop = shop
        self.name = name
        self.hand: list[Lease] = []
        self.asked = self.applied = self.refused = 0

    def claim(self, limit: int) -> int:
        self.hand = self.shop.claim(self.name, limit)
        return len(self.hand)

    def settle(self) -> None:
        for lease in self.hand:
            self._commit(lease)
        self.hand = []

    def hang(self) -> None:
        def body(tx: Any, job: Job) -> None:
            self.shop.apply(tx, job.id, self.name)
            self.tell(inside=job.id)
            SystemWaits().sleep(60)

        self.shop.store.commit(self._done(self.hand[0]), body)

    def work(self, limit: int) -> None:
        while self.claim(limit):
            self.settle()

    def recover(self) -> int:
        adopted = self.shop.store.adopt(self.name, [self.shop.charge.name], 30.0, 100)
        self.shop.store.move([self.shop.decide(lease, Lost()) for lease in adopted])
        return len(adopted)

    def _commit(self, lease: Lease) -> None:
        self.asked += 1
        refusal = self.shop.store.commit(self._done(lease), lambda tx, job: self.shop.apply(tx, job.id, self.name))
        if refusal is None:
            self.applied += 1
            return
        self.refused += 1
        self.shop.store.remark(lease.job.id, attempt=lease.job.attempt, event="refused", actor=self.name, reason=_why(refusal))

    def _done(self, lease: Lease) -> Any:
        return self.shop.decide(lease, Returned(encode(f"charged {lease.job.payload['order']}"), boundary=False))

    def tell(self, **facts: object) -> None:
        sys.stdout.write(json.dumps({"asked": self.asked, "applied": self.applied, "refused": self.refused} | facts) + "\n")
        sys.stdout.flush()


def _why(refusal: Refusal) -> str:
    stands = f"attempt {refusal.attempt} is {refusal.status} by {refusal.ended_by}, at the hand of holder {refusal.holder}"
    return f"{stands}; the job is in {refusal.state}"


PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Also where the demo itself is killed: a frozen holder could not see that. Elsewhere than on Linux, the system ends a stopped group that is left alone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            raise SystemExit(1)


def main(url: str, schema: str, lease: str, name: str, parent: str) -> None:
    die_with(int(parent))
    holder = Holder(Shop(url, schema, float(lease)), name)
    holder.tell()
    for line in sys.stdin:
        word, _, number = line.strip().partition(" ")
        match word:
            case "claim":
                holder.tell(claimed=holder.claim(int(number)))
            case "hang":
                holder.hang()
            case "settle":
                holder.settle()
                holder.tell()
            case "work":
                holder.work(int(number))
                holder.tell()
            case "recover":
                holder.tell(recovered=holder.recover())
            case _:
                raise SystemExit(f"{word!r} is not understood")
    holder.shop.app.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
