"""All that is declared of one kind of job: its lifecycle, its options, its functions."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, TypeVar, get_args

from .backoff import Backoff
from .errors import UsageError
from .job import Job
from .lifecycle import Lifecycle
from .machine import Arrow
from .move import Move, Policy, Take
from .records import KindFacts, Way
from .signature import Signature
from .store import Store
from .taxonomy import Taxonomy
from .user_code import Around

LostLease = Literal["rerun", "fail", "hold"]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Reconcile:
    """Who asks the outside about a kind's executions, and how often."""

    ask: Callable[..., Any]
    every: float
    batch: int
    grace: float


@dataclass(eq=False)
class Declaration:
    """What `@app.job` and a kind's own decorators declared. Refuses, in one sentence, what can never work."""

    name: str
    signature: Signature
    lifecycle: Lifecycle
    tries: int
    lease: float
    queue: str
    max_runtime: float | None
    process: bool
    backoff: Backoff
    on_lost_lease: LostLease
    key_until: frozenset[str]
    commit_timeout: float
    taxonomy: Taxonomy | None = None
    commit: Callable[..., Any] | None = None
    finish: Callable[..., Any] | None = None
    guard: Callable[..., Any] | None = None
    admit: Callable[..., Any] | None = None
    on_cancel: Callable[..., Any] | None = None
    reconcile: Reconcile | None = None
    hooks: dict[str, Callable[..., Any]] = field(default_factory=dict[str, Callable[..., Any]])
    notify: Callable[[Any, Job], None] | None = None
    """Called, as a hook is, in the transaction of every move into a final state."""
    around: list[Around] = field(default_factory=list[Around])
    """The app's list of context managers that workers enter around every function of this kind."""
    _pinned: tuple[Store, int] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.tries, bool) or not isinstance(self.tries, int) or self.tries < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"tries of {self.name} is {self.tries!r}: give a whole number from 1 on.")
        for what, seconds in (("lease", self.lease), ("max_runtime", self.max_runtime), ("commit_timeout", self.commit_timeout)):
            if seconds == 0:
                raise UsageError(f"{what} of {self.name} is zero: give seconds above zero.")
        if self.on_lost_lease not in get_args(LostLease):
            raise UsageError(f"on_lost_lease of {self.name} is {self.on_lost_lease!r}: give one of {', '.join(get_args(LostLease))}.")
        self._check_states("key_until", self.key_until)

    def version(self, store: Store) -> int:
        """The lifecycle's version in this database: looked up once, since a registered version never changes."""
        if self._pinned is None or self._pinned[0] is not store:
            self._pinned = store, store.version_of(self.lifecycle)
        return self._pinned[1]

    @cached_property
    def policy(self) -> Policy:
        """What `decide` needs to know of this kind."""
        return Policy(self.tries, self.backoff, self.on_lost_lease, tuple(sorted(self.key_until)))

    @property
    def alone(self) -> bool:
        """Whether its moves run code of their own, so that none is batched with others."""
        return self.commit is not None or self.notify is not None or bool(self.hooks)

    def entering(self, state: str) -> list[Callable[[Any, Job], None]]:
        """What runs in the transaction of a move into this state."""
        own = [self.hooks[state]] if state in self.hooks else []
        return [*own, self.notify] if self.notify is not None and state in self.lifecycle.finals else own

    def moving(self, move: Move, value: object, *, commits: bool) -> Callable[[Any, Job], None] | None:
        """What runs in the transaction of a held job's move; None if nothing does: the commit function, where it `commits`, then the hooks on its way."""
        commit = self.commit if commits and move.to_status in ("COMMITTED", "DONE") else None
        entered = [(arrow.target, hook) for arrow in move.path for hook in self.entering(arrow.target)]

        def body(tx: Any, job: Job) -> None:
            if commit is not None:
                commit(tx, job, value)
            for state, hook in entered:
                hook(tx, replace(job, state=state, phase=move.phase, tries_left=move.tries_left, last_error=move.error or job.last_error))

        return body if commit is not None or entered else None

    def taking(self, take: Take) -> Callable[[Any, Job], None] | None:
        """What runs in the transaction that carries a waiting job out; None if nothing does."""
        hooks = self.entering(take.arrow.target)

        def body(tx: Any, job: Job) -> None:
            for hook in hooks:
                hook(tx, replace(job, state=take.arrow.target, phase=take.phase))

        return body if hooks else None

    def hooked(self) -> tuple[str, ...]:
        """The states that only a process with this code may move a job into."""
        return tuple(state for state in sorted(self.lifecycle.states) if self.entering(state))

    def facts(self) -> KindFacts:
        """What `migrate` writes down about this kind."""
        return KindFacts(
            self.name, self.lifecycle.name, self.hooked(), queue=self.queue, tries=self.tries, key_until=tuple(sorted(self.key_until)),
            admits=self.admit is not None, every=self.reconcile.every if self.reconcile else None, batch=self.reconcile.batch if self.reconcile else None)

    def ways(self, version: int) -> list[Way]:
        """How a claimer takes jobs of this kind, from each state that they wait in, under this version of its lifecycle."""
        return [self._way(version, state, path) for state in sorted(self.lifecycle.waiting) if (path := self.lifecycle.claim_path(state)) is not None]

    def _way(self, version: int, state: str, path: tuple[Arrow, ...]) -> Way:
        target = path[-1].target if path else state
        at_once = self.guard is None and self.lifecycle.target(target, "start") is None
        return Way(self.name, self.lifecycle.name, version, state, path, "IN_PROGRESS" if at_once else "LEASED", self.lease)

    # ------------------------------------------------------------ the job's other functions
    def plain(self, role: str, fn: F) -> F:
        """Refuse a coroutine where the function runs inside a transaction."""
        if inspect.iscoroutinefunction(fn):
            raise UsageError(f"The {role} function of {self.name} runs inside a transaction, so it cannot be async: write it with def.")
        return fn

    def awaited(self, role: str, fn: F) -> F:
        """Refuse a plain function where the event loop waits for it: it would stop everything else."""
        if _blocks(fn):
            raise UsageError(f"The {role} function of {self.name} runs in the worker's event loop, so it cannot block: write it with async def.")
        return fn

    def once(self, role: str, present: object) -> None:
        if present is not None:
            raise UsageError(f"{self.name} has a {role} function already. A kind has one: put both into it.")

    def hook(self, state: str, fn: F) -> F:
        """Have `fn` run in the transaction of every move into `state`."""
        self.check_hook(state)
        self.hooks[state] = self.plain(f"on_enter({state!r})", fn)
        return fn

    def check_hook(self, state: str) -> None:
        self._check_states("on_enter", [state])
        self.once(f"on_enter({state!r})", self.hooks.get(state))
        if any(arrow.target == state for waiting in self.lifecycle.waiting for arrow in self.lifecycle.claim_path(waiting) or ()):
            raise UsageError(f"{self.name} cannot hook {state}: it is entered by claim, in batches, where no function runs. Use guard instead.")

    def _check_states(self, what: str, states: Iterable[str]) -> None:
        for state in states:
            if state not in self.lifecycle.states:
                known = ", ".join(self.lifecycle.states)
                raise UsageError(f"{what} of {self.name} names {state!r}, which its lifecycle {self.lifecycle.name} lacks: it has {known}.")


def _blocks(fn: object) -> bool:
    return inspect.isfunction(fn) and not inspect.iscoroutinefunction(fn)
