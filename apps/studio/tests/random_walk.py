"""A walk through the studio at random: several users, many wishes, and all sorts of trouble."""

import random
from collections.abc import Callable
from functools import partial

from apps.studio.errors import Refusal, StudioError
from apps.studio.order import PRICES
from apps.studio.tests.images_api import Fault
from apps.studio.tests.kit import Atelier
from apps.studio.tests.scenes import ENOUGH
from interlock.testing import Crashed, Point

FAULTS: list[Callable[[], Fault]] = [Fault.trouble, Fault.blocked, Fault.unauthorized, Fault.cut, Fault.garbage, Fault.no_image]
POINTS = [Point.AFTER_CLAIM, Point.BEFORE_COMMIT, Point.IN_COMMIT, Point.AFTER_COMMIT]


class Walk:
    """One step after another, as its seed says."""

    def __init__(self, atelier: Atelier, seed: int) -> None:
        self._atelier, self._chance = atelier, random.Random(seed)
        self._users = [atelier.user(credits=credits) for credits in (2, 6, 20)]
        self._jobs: list[str] = []

    def step(self) -> str:
        """One move; what it was."""
        moves = {self._create: 8, self._run: 4, self._fault: 4, self._crash: 1, self._reject: 1, self._redrive: 3, self._close: 1, self._grant: 1}
        [move] = self._chance.choices(list(moves), list(moves.values()))
        return f"{move.__name__}: {move()}"

    def rest(self) -> None:
        """Until nothing moves any more."""
        for _ in range(10):
            self._later(ENOUGH)

    def _create(self) -> str:
        user, size = self._chance.choice(self._users), self._chance.choice(list(PRICES))
        try:
            self._jobs.append(self._atelier.order(user, f"a boat, {self._chance.randrange(4)}", size=size))
        except Refusal as error:
            return error.code
        return self._jobs[-1]

    def _run(self) -> str:
        seconds = self._chance.choice([0, 0, 1, 61, ENOUGH])
        self._later(seconds)
        return f"{seconds} s later"

    def _later(self, seconds: float) -> None:
        try:
            self._atelier.later(seconds)
        except Crashed:
            # As the walk wanted it; somebody else takes over when the lease has ended.
            return

    def _fault(self) -> str:
        fault = self._chance.choice(FAULTS)()
        self._atelier.images.fail(fault)
        return str(fault)

    def _crash(self) -> str:
        """The next worker that comes there dies."""
        point = self._chance.choice(POINTS)
        self._atelier.worker.crash_at(point)
        return point.name

    def _reject(self) -> str:
        return self._tried("queued", partial(self._atelier.counter.reject, by="olga", reason="at random"))

    def _redrive(self) -> str:
        return self._tried("dead_letter", partial(self._atelier.review.redrive, by="olga"))

    def _close(self) -> str:
        return self._tried("dead_letter", partial(self._atelier.review.close, by="olga", note="at random"))

    def _tried(self, state: str, do: Callable[[str], str | None]) -> str:
        """This to a job that is in the right state for it, if there is one; else to any."""
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
        self._atelier.people.grant(user.name, 1)
        return user.name
