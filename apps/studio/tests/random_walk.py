"""A random walk: several users, many orders, and all kinds of faults."""

import random
from collections.abc import Callable
from functools import partial

from apps.studio.errors import Refusal, StudioError
from apps.studio.order import PRICES
from apps.studio.tests.fake_images_api import Fault
from apps.studio.tests.scenarios import AFTER_ANY_BACKOFF
from apps.studio.tests.studio_kit import StudioKit
from interlock.testing import Crashed, Failpoint

FAULTS: list[Callable[[], Fault]] = [
    Fault.trouble,
    Fault.blocked,
    Fault.unauthorized,
    Fault.cut,
    Fault.garbage,
    Fault.no_image,
]
POINTS = [Failpoint.AFTER_CLAIM, Failpoint.BEFORE_COMMIT, Failpoint.IN_COMMIT, Failpoint.AFTER_COMMIT]


class RandomWalk:
    """Takes random steps from a seed."""

    def __init__(self, kit: StudioKit, seed: int) -> None:
        self._atelier, self._chance = kit, random.Random(seed)
        self._users = [kit.user(credits=credits) for credits in (2, 6, 20)]
        self._jobs: list[str] = []

    def step(self) -> str:
        """Take one step and describe it."""
        moves = {
            self._create: 8,
            self._run: 4,
            self._fault: 4,
            self._crash: 1,
            self._reject: 1,
            self._redrive: 3,
            self._close: 1,
            self._grant: 1,
        }
        [move] = self._chance.choices(list(moves), list(moves.values()))
        return f"{move.__name__}: {move()}"

    def rest(self) -> None:
        """Advance the clock until no job is open."""
        for _ in range(10):
            self._later(AFTER_ANY_BACKOFF)

    def _create(self) -> str:
        user, size = self._chance.choice(self._users), self._chance.choice(list(PRICES))
        try:
            self._jobs.append(self._atelier.order(user, f"a boat, {self._chance.randrange(4)}", size=size))
        except Refusal as error:
            return error.code
        return self._jobs[-1]

    def _run(self) -> str:
        seconds = self._chance.choice([0, 0, 1, 61, AFTER_ANY_BACKOFF])
        self._later(seconds)
        return f"{seconds} s later"

    def _later(self, seconds: float) -> None:
        try:
            self._atelier.run_after(seconds)
        except Crashed:
            # An intended crash; another worker takes over when the lease expires.
            return

    def _fault(self) -> str:
        fault = self._chance.choice(FAULTS)()
        self._atelier.images.fail(fault)
        return str(fault)

    def _crash(self) -> str:
        """Let the next worker crash at a random point."""
        point = self._chance.choice(POINTS)
        self._atelier.worker.crash_at(point)
        return point.name

    def _reject(self) -> str:
        return self._tried("queued", partial(self._atelier.orders.reject, by="olga", reason="at random"))

    def _redrive(self) -> str:
        return self._tried("dead_letter", partial(self._atelier.dead_letters.redrive, by="olga"))

    def _close(self) -> str:
        return self._tried("dead_letter", partial(self._atelier.dead_letters.close, by="olga", note="at random"))

    def _tried(self, state: str, do: Callable[[str], str | None]) -> str:
        """Apply this to a job in the right state if there is one, else to any job."""
        ready = [id for id in self._jobs if self._atelier.state(id) == state] or self._jobs
        if not ready:
            return "nobody"
        id = self._chance.choice(ready)
        try:
            made = do(id)
        except (StudioError, Refusal) as error:
            return str(error)
        if made is not None:
            self._jobs.append(made)
        return id

    def _grant(self) -> str:
        user = self._chance.choice(self._users)
        self._atelier.users.grant(user.name, 1)
        return user.name
