"""The declaration of one kind of job: its lifecycle, its options and its functions."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NoReturn, TypeVar, get_args

from ..core.backoff import Backoff
from ..core.error_policy import ErrorPolicy
from ..core.job import Job
from ..core.lifecycle import Lifecycle
from ..core.limits import Limit
from ..core.machine import Arrow
from ..core.transition import Move, Policy, Take
from ..errors import UsageError
from ..store.contract import Store
from ..store.flow_types import DeclaredLimit
from ..store.types import ClaimRule, KindFacts
from .signature import Signature
from .tokens import Tokens
from .user_code import Around

LostLease = Literal["rerun", "fail", "hold"]
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Reconcile:
    """The function that asks an external system about a kind's executions, and how often it runs."""

    ask: Callable[..., Any]
    every: float
    batch: int
    grace: float


async def _know_nothing(ids: Sequence[str]) -> NoReturn:
    raise UsageError(f"This kind has no reconcile function to check the work {ids[0]!r}: add one, or cancel the job.")


QUESTIONS = Reconcile(_know_nothing, every=5.0, batch=100, grace=0.0)
"""For a kind that only asks: how often a reconciler looks for questions whose deadline has passed."""


@dataclass(eq=False)
class KindSpec:
    """The declaration of one kind, by `@app.job` and the kind's own decorators. `UsageError` if it can never work."""

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
    error_policy: ErrorPolicy | None = None
    commit_batch: int = 25
    """The most jobs whose commit functions run in one transaction."""
    limit: Limit | None = None
    key_limit: Limit | None = None
    """The limit of each concurrency key; None if jobs of this kind have no such keys."""
    commit: Callable[..., Any] | None = None
    commit_many: Callable[..., Any] | None = None
    """A commit function that takes all jobs of such a transaction."""
    finish: Callable[..., Any] | None = None
    guard: Callable[..., Any] | None = None
    admit: Callable[..., Any] | None = None
    on_cancel: Callable[..., Any] | None = None
    reconcile: Reconcile | None = None
    hooks: dict[str, Callable[..., Any]] = field(default_factory=dict[str, Callable[..., Any]])
    notify: Callable[[Any, Job], None] | None = None
    """A hook that runs in the transaction of every move into a final state, and enqueues webhook messages."""
    tokens: Tokens = field(default_factory=Tokens)
    """Signs the tokens of its questions."""
    around: list[Around] = field(default_factory=list[Around])
    """The app's list of context managers that workers enter around every function of this kind."""
    _pinned: tuple[Store, int] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.tries, bool) or not isinstance(self.tries, int) or self.tries < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"tries of {self.name} is {self.tries!r}: give a whole number from 1 on.")
        if isinstance(self.commit_batch, bool) or not isinstance(self.commit_batch, int) or self.commit_batch < 1:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"commit_batch of {self.name} is {self.commit_batch!r}: give a whole number from 1 on.")
        for what, seconds in (
            ("lease", self.lease),
            ("max_runtime", self.max_runtime),
            ("commit_timeout", self.commit_timeout),
        ):
            if seconds == 0:
                raise UsageError(f"{what} of {self.name} is zero: give seconds above zero.")
        if self.on_lost_lease not in get_args(LostLease):
            raise UsageError(
                f"on_lost_lease of {self.name} is {self.on_lost_lease!r}: give one of {', '.join(get_args(LostLease))}."
            )
        self._check_states("key_until", self.key_until)

    def version(self, store: Store) -> int:
        """Return the lifecycle's version in this database. It is looked up once: a registered version never changes."""
        if self._pinned is None or self._pinned[0] is not store:
            self._pinned = store, store.registry.version_of(self.lifecycle)
        return self._pinned[1]

    @cached_property
    def policy(self) -> Policy:
        """The part of the declaration that `decide` needs."""
        return Policy(self.tries, self.backoff, self.on_lost_lease, tuple(sorted(self.key_until)))

    @property
    def checks(self) -> Reconcile | None:
        """How reconcilers check the work that this kind hands over; None if it hands nothing over."""
        return QUESTIONS if self.reconcile is None and self.signature.asks else self.reconcile

    @property
    def settles_alone(self) -> bool:
        """Whether the kind has functions that run inside its moves, so that its moves are not batched with others."""
        return self.commits or self.notify is not None or bool(self.hooks)

    @property
    def commits(self) -> bool:
        """Whether the kind has a commit function, for one job or for many."""
        return self.commit is not None or self.commit_many is not None

    def hooks_entering(self, state: str) -> list[Callable[[Any, Job], None]]:
        """Return the functions that run in the transaction of a move into this state."""
        own = [self.hooks[state]] if state in self.hooks else []
        return [*own, self.notify] if self.notify is not None and state in self.lifecycle.finals else own

    def move_body(self, move: Move, value: object, *, commits: bool) -> Callable[[Any, Job], None] | None:
        """Return the function that runs in the transaction of a running job's move; None if there is nothing to run.

        It calls the commit function, if the move `commits`, then the hooks of the states on the move's path.
        """
        commits = commits and self.commits and move.to_status in ("COMMITTED", "DONE")
        if not commits and not any(self.hooks_entering(arrow.target) for arrow in move.path):
            return None

        def body(tx: Any, job: Job) -> None:
            if commits:
                self._call_commit(tx, [job], [value])
            self._call_hooks(tx, job, move)

        return body

    def group_body(
        self, moves: Mapping[str, Move], values: Mapping[str, object]
    ) -> Callable[[Any, Sequence[Job]], None]:
        """Return the function that runs in the transaction that commits several jobs, given by their ids."""

        def body(tx: Any, jobs: Sequence[Job]) -> None:
            self._call_commit(tx, jobs, [values[job.id] for job in jobs])
            for job in jobs:
                self._call_hooks(tx, job, moves[job.id])

        return body

    def _call_commit(self, tx: Any, jobs: Sequence[Job], values: Sequence[object]) -> None:
        if self.commit_many is not None:
            self.commit_many(tx, jobs, values)
        elif self.commit is not None:
            for job, value in zip(jobs, values, strict=True):
                self.commit(tx, job, value)

    def _call_hooks(self, tx: Any, job: Job, move: Move) -> None:
        for arrow in move.path:
            for hook in self.hooks_entering(arrow.target):
                entered = replace(
                    job,
                    state=arrow.target,
                    phase=move.phase,
                    tries_left=move.tries_left,
                    last_error=move.error or job.last_error,
                )
                hook(tx, entered)

    def take_body(self, take: Take) -> Callable[[Any, Job], None] | None:
        """Return the function that runs in the transaction that ends a waiting job; None if there is nothing to run."""
        hooks = self.hooks_entering(take.arrow.target)

        def body(tx: Any, job: Job) -> None:
            for hook in hooks:
                hook(tx, replace(job, state=take.arrow.target, phase=take.phase))

        return body if hooks else None

    def hooked_states(self) -> tuple[str, ...]:
        """Return the states with hooks: only a process with this code may move a job into them."""
        return tuple(state for state in sorted(self.lifecycle.states) if self.hooks_entering(state))

    def facts(self) -> KindFacts:
        """Return the facts about this kind that `migrate` stores."""
        return KindFacts(
            self.name,
            self.lifecycle.name,
            self.hooked_states(),
            queue=self.queue,
            tries=self.tries,
            key_until=tuple(sorted(self.key_until)),
            admits=self.admit is not None,
            every=self.checks.every if self.checks else None,
            batch=self.checks.batch if self.checks else None,
        )

    def declared_limits(self) -> list[DeclaredLimit]:
        """Return the limits that `migrate` stores."""
        of_keys = [] if self.key_limit is None else [DeclaredLimit("key", self.name, self.key_limit)]
        return [DeclaredLimit("kind", self.name, self.limit or Limit()), *of_keys]

    def claim_rules(self, version: int) -> list[ClaimRule]:
        """Return how a worker claims jobs of this kind, for each waiting state of this lifecycle version."""
        return [
            self._rule(version, state, path)
            for state in sorted(self.lifecycle.waiting)
            if (path := self.lifecycle.claim_path(state)) is not None
        ]

    def _rule(self, version: int, state: str, path: tuple[Arrow, ...]) -> ClaimRule:
        target = path[-1].target if path else state
        at_once = self.guard is None and self.lifecycle.target(target, "start") is None
        return ClaimRule(
            self.name, self.lifecycle.name, version, state, path, "IN_PROGRESS" if at_once else "LEASED", self.lease
        )

    # ------------------------------------------------------------ the other functions of the kind
    def require_sync(self, role: str, fn: F) -> F:
        """Refuse a coroutine function in a role that runs inside a transaction."""
        if inspect.iscoroutinefunction(fn):
            raise UsageError(
                f"The {role} function of {self.name} runs inside a transaction, so it cannot be async: write it with "
                "def."
            )
        return fn

    def require_async(self, role: str, fn: F) -> F:
        """Refuse a plain function in a role that runs in the event loop: it would block every other job."""
        if _blocks(fn):
            raise UsageError(
                f"The {role} function of {self.name} runs in the worker's event loop, so it cannot block: write it "
                "with async def."
            )
        return fn

    def require_unset(self, role: str, present: object) -> None:
        """Refuse a second function in the same role."""
        if present is not None:
            raise UsageError(f"{self.name} already has a {role} function. A kind has one: call both from it.")

    def add_hook(self, state: str, fn: F) -> F:
        """Register `fn` to run in the transaction of every move into `state`."""
        self.check_hook(state)
        self.hooks[state] = self.require_sync(f"on_enter({state!r})", fn)
        return fn

    def check_hook(self, state: str) -> None:
        """Refuse a hook on an unknown state, a second one, and one on a state that a claim enters."""
        self._check_states("on_enter", [state])
        self.require_unset(f"on_enter({state!r})", self.hooks.get(state))
        if any(
            arrow.target == state
            for waiting in self.lifecycle.waiting
            for arrow in self.lifecycle.claim_path(waiting) or ()
        ):
            raise UsageError(
                f"{self.name} cannot have a hook on {state}: claims enter it in batches and run no hooks. "
                "Use guard instead."
            )

    def _check_states(self, what: str, states: Iterable[str]) -> None:
        for state in states:
            if state not in self.lifecycle.states:
                known = ", ".join(self.lifecycle.states)
                raise UsageError(
                    f"{what} of {self.name} names {state!r}, which is not a state of its lifecycle "
                    f"{self.lifecycle.name}: give one of {known}."
                )


def _blocks(fn: object) -> bool:
    return inspect.isfunction(fn) and not inspect.iscoroutinefunction(fn)
