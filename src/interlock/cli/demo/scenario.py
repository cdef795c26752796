"""The demo's story, scene by scene. Its workers are real ones: `interlock worker`, each in a process of its own."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from ...app import App
from ...errors import InterlockError
from ...job import AuditEntry
from ...lifecycle import Lifecycle, builtin
from ...waits import SystemWaits
from .cast import Player
from .program import PLOTS, Plot, Setting, build, enqueue, lifecycle, open_shop
from .stage import AMBER, Held, Stage, View, ways
from .tally import FROZEN, JOBS, KILLED, MOST, Tally, refused, tally

PATIENCE = 30.0
"""Seconds within which everything here happens, even on a crowded machine."""
GLANCE = 0.1
OTHERS = ("delivery", "download", "image")


class Story:
    """Forty orders and three workers: one works, one is killed, one is frozen and wakes up too late. Then jobs of three other lifecycles."""

    def __init__(self, url: str, directory: Path, stage: Stage, *, fast: bool) -> None:
        self._stage, self._directory, self._fast = stage, directory, fast
        self._setting = Setting(url, lease=2.0, pace=0.15) if fast else Setting(url)
        self._gate = directory / "gate"
        self._waits = SystemWaits()
        self._players: list[Player] = []
        self._title = ""
        self._lifecycles: list[Lifecycle] = [builtin("standard")]
        self.app: App = build(self._setting)
        self.refused = ""
        """A job whose history shows a refusal."""

    def tell(self) -> Tally:
        """All of it. What it comes to is counted at the end."""
        with self._ending():
            self._flow()
            self._kill()
            self._take_over()
            self._wake()
            plots = self._others()
            self._end()
        return tally(self.app, plots)

    @contextmanager
    def _ending(self) -> Generator[None]:
        """No worker outlives the story, whatever becomes of it."""
        try:
            yield
        finally:
            for player in self._players:
                player.end()
            self.app.close()

    # ------------------------------------------------------------ 1: jobs flow
    def _flow(self) -> None:
        self._scene("1 of 4: forty orders flow through the lifecycle `standard`; the database refuses every arrow that is not drawn")
        self._draw_plainly(self._lifecycles[0])
        open_shop(self.app)
        charge = self.app.kinds["charge"]
        self.app.enqueue_many([charge.using(idempotency_key=f"order-{n}").call(n) for n in range(1, JOBS + 1)])
        self._say(f"{JOBS} orders are enqueued. Three workers start, each a process. Nobody moves a job without holding its lease: {self._setting.lease:g} s.")
        slow = Setting(self._setting.url, self._setting.lease, gate=str(self._gate))
        stuck = Setting(self._setting.url, self._setting.lease, gate=str(self._directory / "never"))
        self._start("worker-2", stuck, KILLED)
        self._start("worker-3", slow, FROZEN)
        self._until(lambda: (self._holds("worker-2"), self._holds("worker-3")) == (KILLED, FROZEN), "worker-2 and worker-3 hold their jobs")
        self._start("worker-1", self._setting, KILLED)
        done = JOBS - KILLED - FROZEN
        self._until(lambda: self._count("SUCCEEDED") >= done, f"worker-1 charges {done} orders")
        self._say(f"worker-1 has charged {done} orders, each booked in the transaction that ends its job. The others are slow, and renew their leases.")
        self._pause(1.5)

    # ------------------------------------------------------------ 2: kill -9
    def _kill(self) -> None:
        victim, sleeper = self._player("worker-2"), self._player("worker-3")
        self._scene(f"2 of 4: kill -9 {victim.name} while it holds {KILLED} jobs")
        held = [one.number for one in self._held() if one.owner.startswith(f"{victim.name}#")]
        code = victim.kill()
        left = [one.left for one in self._held() if one.owner.startswith(f"{victim.name}#")]
        orders = ", ".join(f"#{number}" for number in sorted(held))
        self._say(f"kill -9 {victim.pid}: {victim.name} is gone (exit code {code}) with orders {orders}. Their leases end in {max(left):.1f} s; "
                  "until then nobody touches them.", "bold red")
        sleeper.freeze(self._setting)
        self._say(f"{sleeper.name} is frozen (SIGSTOP) with {FROZEN} jobs in hand: it cannot renew either, and knows nothing of it.", "bold cyan")
        self._until(lambda: all(one.left <= 0 or one.owner.startswith("worker-1#") for one in self._held()), "the leases run out")
        self._say("The leases have run out.", AMBER)

    # ------------------------------------------------------------ 3: another takes over
    def _take_over(self) -> None:
        self._scene("3 of 4: worker-1 takes over, and a frozen worker wakes up too late")
        lost = KILLED + FROZEN
        self._until(lambda: sum(job.lease_losses > 0 for job in self.app.jobs(limit=MOST)) == lost, "worker-1 takes the lost jobs over")
        self._say(f"worker-1 has adopted {lost} executions and given their jobs back, one try spent. Each now runs alone, in case its worker died of it.")
        self._until(lambda: self._count("SUCCEEDED") == JOBS, "every order is charged")
        self._say(f"All {JOBS} orders are charged, the {lost} lost ones at their second attempt.", "green")
        self._pause(1.0)

    def _wake(self) -> None:
        sleeper = self._player("worker-3")
        self._gate.touch()
        sleeper.thaw()
        self._say(f"{sleeper.name} wakes up (SIGCONT), finishes its {FROZEN} orders as if nothing had happened, and commits. The audit says:", "bold cyan")
        self._until(lambda: len(self._refusals()) == FROZEN, "the late commits are refused")
        for entry in self._refusals():
            self.refused = entry.job_id
            self._say(f"  refused: order #{self.app.get(entry.job_id).payload['order']}, {entry.actor}: {entry.reason}", "bold yellow")
        self._stop(sleeper)
        self._pause(3.0)

    # ------------------------------------------------------------ 4: other lifecycles
    def _others(self) -> dict[str, Plot]:
        self._scene("4 of 4: the same engine runs any lifecycle that you draw: retry, reject, dead letter")
        self._lifecycles = [lifecycle(name) for name in OTHERS]
        plots = enqueue(self.app, PLOTS)
        self._say(f"{len(plots)} more jobs, of three lifecycles that are read from their diagrams in Markdown. worker-1 knows them, too.")
        told: set[tuple[str, int, int]] = set()

        def over() -> bool:
            self._tell_new(plots, told)
            return all(job.ended for job in self.app.jobs(limit=MOST))

        self._until(over, "the other jobs end")
        self._tell_new(plots, told)
        counts = self.app.database.store().counts()
        for each in self._lifecycles:
            self._say(f"  {each.name:<9}" + "  ".join(f"{state} {count}" for state, count in sorted(counts[each.name].items())), "green")
        self._pause(3.0)
        return plots

    def _tell_new(self, plots: dict[str, Plot], told: set[tuple[str, int, int]]) -> None:
        """What the audit says of jobs that do not simply succeed."""
        for id, plot in plots.items():
            for entry in self.app.history(id) if plot.fate != "fine" else ():
                if entry.reason and entry.from_state != entry.to_state and (id, entry.version, entry.n) not in told:
                    told.add((id, entry.version, entry.n))
                    self._say(f"  {plot.kind}: {entry.from_state} → {entry.to_state} ({entry.event}): {entry.reason}", "dim")

    def _end(self) -> None:
        self._stop(self._player("worker-1"))

    def _stop(self, player: Player) -> None:
        code = player.stop()
        if code != 0:
            raise InterlockError(f"the demo's {player.name} did not end in good order, but with code {code}. The last that it said: {player.said}")

    # ------------------------------------------------------------ what is there
    def _holds(self, name: str) -> int:
        return sum(one.owner.startswith(f"{name}#") for one in self._held())

    def _held(self) -> list[Held]:
        """Every job that somebody holds."""
        now, found = self.app.database.store().now(), list[Held]()
        for job in self.app.jobs(phase="running", limit=MOST):
            last = self.app.executions(job.id)[-1]
            if last.live:
                number = job.payload.get("order", job.payload.get("number", 0))
                found.append(Held(number, last.lease_owner, (last.lease_expires_at - now).total_seconds()))
        return found

    def _count(self, state: str) -> int:
        return self.app.database.store().counts().get("standard", {}).get(state, 0)

    def _refusals(self) -> list[AuditEntry]:
        return refused([entry for job in self.app.jobs(kind="charge", limit=MOST) for entry in (self.app.history(job.id) if job.lease_losses else ())])

    def _player(self, name: str) -> Player:
        return next(player for player in self._players if player.name == name)

    def _view(self) -> View:
        return View(self._title, self._lifecycles, self.app.database.store().counts(), self._held(), self._players)

    # ------------------------------------------------------------ telling
    def _start(self, name: str, setting: Setting, slots: int) -> None:
        self._players.append(Player(name, setting, slots, self._directory / f"{name}.log"))
        self._players.sort(key=lambda player: player.name)

    def _scene(self, title: str) -> None:
        self._title = title
        self._stage.title(title)

    def _draw_plainly(self, drawn: Lifecycle) -> None:
        for state in drawn.states:
            if leads := ways(drawn, state):
                self._stage.aside(f"    {state:<10}{leads}")

    def _say(self, sentence: str, style: str = "") -> None:
        self._stage.say(sentence, style)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Show what goes on until it is as it should be."""
        end = self._waits.monotonic() + PATIENCE
        while not condition():
            for player in self._players:
                player.check()
            if self._waits.monotonic() > end:
                last = "; ".join(f"{player.name}: {player.said}" for player in self._players)
                raise InterlockError(f"the demo waited {PATIENCE:g} s in vain: {what}. Its workers said last: {last}")
            self._show()
            self._waits.sleep(GLANCE)
        self._show()

    def _pause(self, seconds: float) -> None:
        """Time to read."""
        end = self._waits.monotonic() + (0 if self._fast else seconds)
        while self._waits.monotonic() < end:
            self._show()
            self._waits.sleep(GLANCE)

    def _show(self) -> None:
        self._stage.draw(self._view)
