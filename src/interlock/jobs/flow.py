"""A flow: a graph of jobs that is stored in one transaction."""

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from types import TracebackType
from typing import Any, Self, TypeVar

from ..core.blocked_jobs import OnFailed
from ..core.ids import new_ids, uuid7
from ..core.payload import check_name
from ..errors import UsageError
from ..store.flow_types import Dependency, NewBatch
from ..store.types import Enqueued
from .backend import Backend
from .batch import Batch
from .dependencies import Needed, check_cancellable, dependencies
from .handle import JobHandle
from .request import JobRequest

R = TypeVar("R")


@dataclass(slots=True)
class Part:
    """A job of a flow that is not stored yet."""

    handle: JobHandle[Any]
    request: JobRequest[Any]
    batch: str
    after: tuple[Dependency, ...]


@dataclass(frozen=True, slots=True)
class FlowStore:
    """The functions of an app that store a flow."""

    backend: Backend
    check: Callable[[JobRequest[Any]], JobRequest[Any]]
    """Check that a request belongs to the app."""
    store: Callable[[Sequence[Part], Sequence[NewBatch], Any], list[Enqueued]]
    """Store the jobs and batches in one transaction: the caller's, if it is given."""
    astore: Callable[[Sequence[Part], Sequence[NewBatch], Any], Coroutine[Any, Any, list[Enqueued]]]
    """The same for asyncio."""


class Flow(Batch):
    """A named graph of jobs. The end of the `with` block stores all of it, or nothing if the block raises.

    A flow is a batch of all its jobs. Inside the block, handles have ids, but the jobs do not exist yet.
    """

    def __init__(self, name: str, store: FlowStore, conn: Any) -> None:
        super().__init__(uuid7(), check_name("The name of a flow", name), store.backend)
        self._flow_store, self._conn = store, conn
        self._parts: dict[str, Part] = {}
        self._batches: dict[str, NewBatch] = {}
        self._stored = False

    # ------------------------------------------------------------ building
    def add(
        self, request: JobRequest[R], /, *, after: Sequence[Needed] = (), on_failed: OnFailed = "cancel"
    ) -> JobHandle[R]:
        """Add a job. It waits until all in `after` have ended; `on_failed` says what happens if one of them fails."""
        return self._add([request], self.id, after, on_failed)[0]

    def batch(
        self,
        name: str,
        requests: Iterable[JobRequest[Any]],
        /,
        *,
        after: Sequence[Needed] = (),
        on_failed: OnFailed = "cancel",
    ) -> Batch:
        """Add a batch of jobs, which others can wait for. Each of its jobs waits for all in `after`."""
        batch = Batch(uuid7(), check_name("The name of a batch", name), self._backend)
        self._add(list(requests), batch.id, after, on_failed)
        self._batches[batch.id] = NewBatch(batch.id, batch.name, self.id)
        return batch

    def _add(
        self, requests: Sequence[JobRequest[Any]], batch: str, after: Sequence[Needed], on_failed: OnFailed
    ) -> list[JobHandle[Any]]:
        self._check_open()
        needed, handles = dependencies(after, on_failed), list[JobHandle[Any]]()
        for id, request in zip(new_ids(len(requests)), requests, strict=True):
            self._flow_store.check(request)
            check_cancellable(request.spec, needed)
            handle: JobHandle[Any] = JobHandle(Enqueued(id, created=True), self._backend, request.spec.name)
            own = {each.needs: each for each in request.options.after or ()}
            merged = tuple({**own, **{each.needs: each for each in needed}}.values())
            self._parts[id] = Part(handle, request, batch, merged)
            handles.append(handle)
        return handles

    def _check_open(self) -> None:
        if self._stored:
            raise UsageError(
                f"The flow {self.name} is stored already: add its jobs and dependencies inside the `with` block."
            )

    # ------------------------------------------------------------ storing
    def store(self) -> None:
        """Store the flow now. The end of the `with` block does this."""
        if parts := self._parts_to_store():
            self._note_stored(parts, self._flow_store.store(parts, self._all_batches(), self._conn))

    async def astore(self) -> None:
        """`store` for asyncio. The end of the `async with` block does this."""
        if parts := self._parts_to_store():
            self._note_stored(parts, await self._flow_store.astore(parts, self._all_batches(), self._conn))

    def _parts_to_store(self) -> list[Part]:
        if self._stored:
            return []
        if not self._parts:
            raise UsageError(f"The flow {self.name} has no jobs: add some inside the `with` block.")
        self._check_cycles()
        return list(self._parts.values())

    def _all_batches(self) -> list[NewBatch]:
        return [NewBatch(self.id, self.name), *self._batches.values()]

    def _note_stored(self, parts: Sequence[Part], found: Sequence[Enqueued]) -> None:
        # A job that was found by its key is not part of the flow; its handle shows the job that exists. Jobs that wait
        # for its batch wait for it as well.
        for part, stored in zip(parts, found, strict=True):
            part.handle.id, part.handle.created, part.handle.replaced = stored.id, stored.created, stored.replaced
        self._stored = True

    def _check_cycles(self) -> None:
        """`UsageError` if jobs wait for each other. A batch ends after its jobs."""
        graph: dict[str, set[str]] = {self.id: set(self._batches)}
        for id, part in self._parts.items():
            graph.setdefault(part.batch, set()).add(id)
            graph[id] = {each.needs for each in part.after}
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            cycle: list[str] = error.args[1]
            names = " → ".join(self._show(id) for id in reversed(cycle))
            raise UsageError(
                f"The flow {self.name} has a cycle, so these jobs would wait for each other forever: {names}. "
                "Nothing was stored."
            ) from None

    def _show(self, id: str) -> str:
        if id in self._parts:
            return f"{self._parts[id].request.spec.name} {id[-6:]}"
        return self._batches[id].name if id in self._batches else self.name

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.store()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.astore()
