"""The demo's story, scene by scene."""

import json
import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from signal import SIGCONT, SIGSTOP
from typing import Any

from ...lifecycle import Lifecycle
from ...verify import Report
from ...waits import SystemWaits, pauses
from .. import screen
from ..verify import verdict
from .shop import Effects, Shop

JOBS = 40
KILLED = 6
FROZEN = 2
PATIENCE = 5.0


class Process:
    """A holder in a process of its own."""

    def __init__(self, name: str, url: str, schema: str, lease: float) -> None:
        self.name = name
        self.facts: dict[str, Any] = {}
        module = f"{__package__}.holder"
        # In a group of its own: a Ctrl-C is the demo's to answer.
        self.popen = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", module, url, schema, str(lease), name, str(os.getpid())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0)

    def ask(self, words: str) -> None:
        if self.popen.stdin:
            self.popen.stdin.write(f"{words}\n")
            self.popen.stdin.flush()

    def answer(self) -> dict[str, Any]:
        line = self.popen.stdout.readline() if self.popen.stdout else ""
        if not line:
            raise RuntimeError(f"the demo's holder {self.name} ended with code {self.popen.wait()}")
        self.facts = json.loads(line)
        return self.facts

    def end(self) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.communicate()


@dataclass
class Tally:
    """What the last screen says."""

    effects: Effects
    asked: int
    recovered: int
    succeeded: int
    refused: int
    report: Report

    @property
    def clean(self) -> bool:
        once = self.effects == Effects(applied=JOBS, doubled=0)
        return self.report.ok and once and (self.succeeded, self.recovered, self.refused) == (JOBS, KILLED + FROZEN, FROZEN)


class Story:
    """Forty jobs and four holders: two work, one is killed, one is frozen and wakes up too late."""

    def __init__(self, url: str, schema: str, fast: bool) -> None:
        self.fast = fast
        self.lease = 1.0 if fast else 1.5
        self.url, self.schema = url, schema
        self.shop = Shop(url, schema, self.lease)
        self.waits = SystemWaits()
        self.opened = False

    def tell(self, next_command: str, leftover: str) -> bool:
        """All of it, then what to try next, and what is left of it; whether it ended as it should."""
        self._begin()
        with self._holders("ann", "bob", "cid", "dee") as (ann, bob, cid, dee):
            began = self._claims(ann, bob)
            self._kill(ann)
            self._freeze(bob)
            self._work(cid, dee)
            self._recover(cid, began)
            self._work(cid, dee, again=True)
            self._wake(bob)
            asked = 1 + sum(each.facts["asked"] for each in (bob, cid, dee))
        tally = self._count(asked)
        self._last_screen(tally, next_command, leftover)
        self.shop.app.close()
        return tally.clean

    def drop(self) -> None:
        """Leave a server as it was."""
        if self.opened:
            with self.shop.app.transaction() as tx:
                tx.execute(f"DROP SCHEMA {self.schema} CASCADE")
        self.shop.app.close()

    # ------------------------------------------------------------ the scenes
    def _begin(self) -> None:
        screen.say("A job's lifecycle is declared, and the database refuses every arrow that is not drawn. This is `standard`:", style="bold")
        for line in drawn(self.shop.lifecycle):
            screen.say(f"    {line}")
        self.shop.open()
        self.opened = True
        calls = [self.shop.charge.using(idempotency_key=f"order-{n}").call(n) for n in range(JOBS)]
        stored, again = (sum(one.created for one in self.shop.app.enqueue_many(calls)) for _ in range(2))
        self._say(f"{stored} jobs enqueued, each with an idempotency key; asked for a second time with the same keys: {again} more.")

    def _claims(self, ann: Process, bob: Process) -> float:
        ann.ask(f"claim {KILLED}")
        bob.ask(f"claim {FROZEN}")
        counts = ann.answer()["claimed"], bob.answer()["claimed"]
        self._say(f"ann claims {counts[0]} jobs and bob {counts[1]}, each with a lease of {self.lease:g} s. Nobody moves a job without holding its lease.")
        return self.waits.monotonic()

    def _kill(self, ann: Process) -> None:
        ann.ask("hang")
        ann.answer()
        ann.popen.kill()
        code = ann.popen.wait()
        self._say(f"ann writes her first charge, and before her commit ends she is killed (kill -9, exit code {code}).")

    def _freeze(self, bob: Process) -> None:
        bob.popen.send_signal(SIGSTOP)
        self._say("bob is frozen (SIGSTOP) with his jobs in hand.")

    def _work(self, cid: Process, dee: Process, *, again: bool = False) -> None:
        before = cid.facts["applied"] + dee.facts["applied"]
        for each in (cid, dee):
            each.ask("work 5")
        for each in (cid, dee):
            each.answer()
        done = cid.facts["applied"] + dee.facts["applied"] - before
        what = "run the lost jobs again" if again else "claim, decide and commit"
        self._say(f"cid and dee {what}: {done} charges, each in the transaction that ends its job.")

    def _recover(self, cid: Process, began: float) -> None:
        self.waits.sleep(max(0.0, began + self.lease - self.waits.monotonic()))
        adopted = 0
        for pause in pauses(self.waits, PATIENCE, first=0.05):
            cid.ask("recover")
            adopted += cid.answer()["recovered"]
            if adopted >= KILLED + FROZEN:
                break
            self.waits.sleep(pause)
        self._say(f"The leases have run out: cid adopts {adopted} executions and gives their jobs back, one try spent.")

    def _wake(self, bob: Process) -> None:
        bob.popen.send_signal(SIGCONT)
        bob.ask("settle")
        bob.answer()
        self._say(f"bob wakes up and commits his {FROZEN} jobs, as if nothing had happened:")
        for remark in self._remarks():
            screen.say(f"    {remark}", style="yellow")

    def _remarks(self) -> list[str]:
        """What the audit says about refused moves."""
        entries = [entry for job in self.shop.app.jobs(limit=JOBS) for entry in self.shop.app.history(job.id) if entry.event == "refused"]
        return [f"REFUSED {entry.actor} on job {entry.job_id}: {entry.reason}" for entry in entries]

    # ------------------------------------------------------------ the end
    def _count(self, asked: int) -> Tally:
        jobs = self.shop.app.jobs(limit=10 * JOBS)
        succeeded = [job for job in jobs if job.phase == "succeeded"]
        recovered = sum(1 for job in succeeded if job.lease_losses)
        return Tally(self.shop.effects(), asked, recovered, len(succeeded), len(self._remarks()), self.shop.app.verify())

    def _last_screen(self, tally: Tally, next_command: str, leftover: str) -> None:
        screen.say()
        screen.pairs((
            ("jobs", f"{JOBS} enqueued, {tally.succeeded} succeeded"),
            ("killed", f"1 holder, with {KILLED} jobs in hand, one of them inside its commit"),
            ("recovered", f"{tally.recovered} jobs whose lease was lost ran again"),
            ("refused", f"{tally.refused} commits of a holder that woke up too late"),
            ("effects", f"{tally.asked} asked, {tally.effects.applied} applied, {tally.effects.doubled} doubled"),
            ("verify", verdict(tally.report)),
            ("try next", next_command),
            ("note", f"here the holders were moved by hand: the worker, which runs your handlers, is not there yet; {leftover}"),
        ))

    def _say(self, sentence: str) -> None:
        screen.say(sentence)
        if not self.fast:
            self.waits.sleep(0.2)

    @contextmanager
    def _holders(self, *names: str) -> Generator[list[Process]]:
        """All of them start at once, and none outlives the story."""
        with ExitStack() as stack:
            processes: list[Process] = []
            for name in names:
                processes.append(Process(name, self.url, self.schema, self.lease))
                stack.callback(processes[-1].end)
            for process in processes:
                process.answer()
            yield processes


def drawn(lifecycle: Lifecycle) -> list[str]:
    """The lifecycle in a few lines: each state, and where its events lead."""
    width = max(len(state) for state in lifecycle.states)
    lines: list[str] = []
    for state in lifecycle.states:
        ways: dict[str, list[str]] = {}
        for arrow in lifecycle.arrows:
            if arrow.source == state:
                ways.setdefault(arrow.target, []).append(arrow.event)
        if ways:
            lines.append(f"{state:<{width}}  " + "   ".join(f"──{', '.join(events)}─▶ {target}" for target, events in ways.items()))
    return lines
