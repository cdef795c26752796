"""The steps of the demo. Each worker is a real `interlock worker` process."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from ...app import App
from ...core.job import AuditEntry
from ...core.lifecycle import Lifecycle, builtin
from ...core.sleeper import SystemSleeper
from ...errors import InterlockError
from .demo_app import CASES, Case, Setting, build, enqueue, lifecycle, open_shop
from .demo_workers import WorkerProcess
from .display import AMBER, DemoView, Display, LeasedOrder, transitions_from
from .summary import FROZEN, JOBS, KILLED, MOST, Summary, count_results, refused

STEP_TIMEOUT = 30.0
"""Seconds that each step may take."""
POLL_INTERVAL = 0.1
OTHERS = ("delivery", "download", "image")


class Scenario:
    """Forty orders and three workers: one works, one is killed, one is frozen and resumes too late.

    Then jobs of three other lifecycles run.
    """

    def __init__(self, url: str, directory: Path, open_display: Display, *, fast: bool) -> None:
        self._display, self._directory, self._fast = open_display, directory, fast
        self._setting = Setting(url, lease=2.0, handler_seconds=0.15) if fast else Setting(url)
        self._gate = directory / "gate"
        self._sleeper = SystemSleeper()
        self._workers: list[WorkerProcess] = []
        self._title = ""
        self._lifecycles: list[Lifecycle] = [builtin("standard")]
        self.app: App = build(self._setting)
        self.refused = ""
        """A job whose history shows a refusal."""

    def run(self) -> Summary:
        """Run every step and return the final counts."""
        with self._ending():
            self._flow()
            self._kill()
            self._take_over()
            self._wake()
            cases = self._others()
            self._end()
        return count_results(self.app, cases)

    @contextmanager
    def _ending(self) -> Generator[None]:
        """End every worker when the block ends."""
        try:
            yield
        finally:
            for worker in self._workers:
                worker.end()
            self.app.close()

    # ------------------------------------------------------------ 1: jobs flow
    def _flow(self) -> None:
        self._scene(
            "1 of 4: forty orders run through the lifecycle `standard`; the database rejects any other transition"
        )
        self._print_transitions(self._lifecycles[0])
        open_shop(self.app)
        charge = self.app.kinds["charge"]
        self.app.enqueue_many([charge.using(idempotency_key=f"order-{n}").request(n) for n in range(1, JOBS + 1)])
        self._say(
            f"{JOBS} orders are enqueued. Three worker processes start. Only the worker that owns a job's lease "
            f"({self._setting.lease:g} s) may move the job."
        )
        slow = Setting(self._setting.url, self._setting.lease, gate=str(self._gate))
        stuck = Setting(self._setting.url, self._setting.lease, gate=str(self._directory / "never"))
        self._start("worker-2", stuck, KILLED)
        self._start("worker-3", slow, FROZEN)
        self._until(
            lambda: (self._count_leased("worker-2"), self._count_leased("worker-3")) == (KILLED, FROZEN),
            "worker-2 and worker-3 lease their jobs",
        )
        self._start("worker-1", self._setting, KILLED)
        done = JOBS - KILLED - FROZEN
        self._until(lambda: self._count("SUCCEEDED") >= done, f"worker-1 charges {done} orders")
        self._say(
            f"worker-1 charged {done} orders and booked each in the transaction that ends its job. The other workers "
            "are slow and renew their leases."
        )
        self._pause(1.5)

    # ------------------------------------------------------------ 2: kill -9
    def _kill(self) -> None:
        victim, sleeper = self._worker("worker-2"), self._worker("worker-3")
        self._until(lambda: self._count_leased(victim.name) == KILLED, f"{victim.name} leases its jobs")
        self._scene(f"2 of 4: kill -9 {victim.name} while it runs {KILLED} jobs")
        # Read before the kill: on a busy machine, worker-1 may have taken the orders over before they are read.
        owned = [one for one in self._leased_orders() if one.owner.startswith(f"{victim.name}#")]
        code = victim.kill()
        orders = ", ".join(f"#{number}" for number in sorted(one.number for one in owned))
        self._say(
            f"kill -9 {victim.pid}: {victim.name} is dead (exit code {code}) with orders {orders}. Their leases "
            f"expire in {max(one.left for one in owned):.1f} s; until then no worker takes them.",
            "bold red",
        )
        sleeper.freeze(self._setting)
        self._say(
            f"{sleeper.name} is frozen (SIGSTOP) with {FROZEN} running jobs: it cannot renew its leases either.",
            "bold cyan",
        )
        self._until(
            lambda: all(one.left <= 0 or one.owner.startswith("worker-1#") for one in self._leased_orders()),
            "the leases expire",
        )
        self._say("The leases have expired.", AMBER)

    # ------------------------------------------------------------ 3: another takes over
    def _take_over(self) -> None:
        self._scene("3 of 4: worker-1 takes over, and the frozen worker resumes too late")
        lost = KILLED + FROZEN
        self._until(
            lambda: sum(job.lease_losses > 0 for job in self.app.jobs(limit=MOST)) == lost,
            "worker-1 takes over the lost jobs",
        )
        self._say(
            f"worker-1 recovered {lost} jobs; each lost one try. They now run in child processes, in case one of "
            "them killed its worker."
        )
        self._until(lambda: self._count("SUCCEEDED") == JOBS, "every order is charged")
        self._say(f"All {JOBS} orders are charged, the {lost} lost ones on their second attempt.", "green")
        self._pause(1.0)

    def _wake(self) -> None:
        sleeper = self._worker("worker-3")
        self._gate.touch()
        sleeper.thaw()
        self._say(
            f"{sleeper.name} resumes (SIGCONT), finishes its {FROZEN} orders and tries to commit. The audit says:",
            "bold cyan",
        )
        self._until(lambda: len(self._refusals()) == FROZEN, "the late commits are refused")
        for entry in self._refusals():
            self.refused = entry.job_id
            self._say(
                f"  refused: order #{self.app.get(entry.job_id).payload['order']}, {entry.actor}: {entry.reason}",
                "bold yellow",
            )
        self._stop(sleeper)
        self._pause(3.0)

    # ------------------------------------------------------------ 4: other lifecycles
    def _others(self) -> dict[str, Case]:
        self._scene("4 of 4: the same engine runs any lifecycle that you declare: retry, reject, dead letter")
        self._lifecycles = [lifecycle(name) for name in OTHERS]
        cases = enqueue(self.app, CASES)
        self._say(f"{len(cases)} more jobs run through three lifecycles that are declared as Mermaid diagrams.")
        printed: set[tuple[str, int, int]] = set()

        def all_ended() -> bool:
            self._print_new(cases, printed)
            return all(job.ended for job in self.app.jobs(limit=MOST))

        self._until(all_ended, "the other jobs end")
        self._print_new(cases, printed)
        counts = self.app.database.store().inspect.counts()
        for each in self._lifecycles:
            self._say(
                f"  {each.name:<9}"
                + "  ".join(f"{state} {count}" for state, count in sorted(counts[each.name].items())),
                "green",
            )
        self._pause(3.0)
        return cases

    def _print_new(self, cases: dict[str, Case], printed: set[tuple[str, int, int]]) -> None:
        """Print new audit entries of jobs that do not simply succeed."""
        for id, case in cases.items():
            for entry in self.app.history(id) if case.fate != "fine" else ():
                if entry.reason and entry.from_state != entry.to_state and (id, entry.version, entry.n) not in printed:
                    printed.add((id, entry.version, entry.n))
                    self._say(
                        f"  {case.kind}: {entry.from_state} → {entry.to_state} ({entry.event}): {entry.reason}", "dim"
                    )

    def _end(self) -> None:
        self._stop(self._worker("worker-1"))

    def _stop(self, worker: WorkerProcess) -> None:
        code = worker.stop()
        if code != 0:
            raise InterlockError(
                f"The demo's {worker.name} exited with code {code}. Its last log line: {worker.last_line}"
            )

    # ------------------------------------------------------------ reading the database
    def _count_leased(self, name: str) -> int:
        return sum(one.owner.startswith(f"{name}#") for one in self._leased_orders())

    def _leased_orders(self) -> list[LeasedOrder]:
        """Return every leased order."""
        now, found = self.app.database.store().inspect.now(), list[LeasedOrder]()
        for job in self.app.jobs(phase="running", limit=MOST):
            last = self.app.executions(job.id)[-1]
            if last.live:
                number = job.payload.get("order", job.payload.get("number", 0))
                found.append(LeasedOrder(number, last.lease_owner, (last.lease_expires_at - now).total_seconds()))
        return found

    def _count(self, state: str) -> int:
        return self.app.database.store().inspect.counts().get("standard", {}).get(state, 0)

    def _refusals(self) -> list[AuditEntry]:
        return refused(
            [
                entry
                for job in self.app.jobs(kind="charge", limit=MOST)
                for entry in (self.app.history(job.id) if job.lease_losses else ())
            ]
        )

    def _worker(self, name: str) -> WorkerProcess:
        return next(worker for worker in self._workers if worker.name == name)

    def _view(self) -> DemoView:
        return DemoView(
            self._title,
            self._lifecycles,
            self.app.database.store().inspect.counts(),
            self._leased_orders(),
            self._workers,
        )

    # ------------------------------------------------------------ messages
    def _start(self, name: str, setting: Setting, slots: int) -> None:
        self._workers.append(WorkerProcess(name, setting, slots, self._directory / f"{name}.log"))
        self._workers.sort(key=lambda worker: worker.name)

    def _scene(self, title: str) -> None:
        self._title = title
        self._display.title(title)

    def _print_transitions(self, shown: Lifecycle) -> None:
        for state in shown.states:
            if transitions := transitions_from(shown, state):
                self._display.detail(f"    {state:<10}{transitions}")

    def _say(self, sentence: str, style: str = "") -> None:
        self._display.say(sentence, style)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Refresh the display until the condition holds."""
        end = self._sleeper.monotonic() + STEP_TIMEOUT
        while not condition():
            for worker in self._workers:
                worker.check()
            if self._sleeper.monotonic() > end:
                last = "; ".join(f"{worker.name}: {worker.last_line}" for worker in self._workers)
                raise InterlockError(
                    f"The demo waited {STEP_TIMEOUT:g} s for this: {what}. The last log lines of its workers: {last}"
                )
            self._show()
            self._sleeper.sleep(POLL_INTERVAL)
        self._show()

    def _pause(self, seconds: float) -> None:
        """Give the user time to read."""
        end = self._sleeper.monotonic() + (0 if self._fast else seconds)
        while self._sleeper.monotonic() < end:
            self._show()
            self._sleeper.sleep(POLL_INTERVAL)

    def _show(self) -> None:
        self._display.draw(self._view)
