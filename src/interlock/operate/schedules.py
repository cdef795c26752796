"""Schedules at run time: create, change, pause, resume, delete and reset them, and run one now."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from ..core.cron import CatchUp
from ..core.payload import check_name, clean
from ..errors import NotFound, UsageError
from ..jobs.async_twin import async_twin
from ..jobs.backend import Backend
from ..jobs.enqueue import enqueue_jobs
from ..jobs.handle import JobHandle
from ..jobs.kind import Kind
from ..jobs.request import JobRequest, new_jobs
from ..jobs.schedule import Schedule, check_storable, check_times
from ..jobs.stored_request import facts_of, request_of, schedule_transaction, shown_options
from ..store import OpenStore
from ..store.schedule_types import ScheduleChange, ScheduleFacts, StoredSchedule
from .controls import FindStore
from .operator import operator_name
from .schedule_info import ScheduleInfo, schedule_infos

CheckRequest = Callable[[JobRequest[Any]], JobRequest[Any]]


class Schedules:
    """The schedules of an app's database: `app.schedules.create("nightly", "0 3 * * *", report.request(), by="ann")`.

    Each change applies to all workers: after the call has returned, no tick creates a job from the old schedule.
    `app.operations()` shows who changed what, and why. A change of a declared schedule stays until the next change or
    `reset`; deploys do not undo it.
    """

    def __init__(
        self,
        find_store: FindStore,
        backend: Backend,
        declared: Mapping[str, Schedule],
        kinds: Mapping[str, Kind[..., Any, Any]],
        check_request: CheckRequest,
    ) -> None:
        self._find_store = find_store
        self._backend = backend
        self._declared = declared
        self._kinds = kinds
        self._check_request = check_request

    def __repr__(self) -> str:
        return f"<Schedules, of which {len(self._declared)} are declared>"

    # ------------------------------------------------------------ read
    def all(self) -> list[ScheduleInfo]:
        """Return every schedule, by name: the declared ones, and those created at run time."""
        store = self._backend.store()
        return schedule_infos(store, store.schedules.all(), self._declared)

    def __iter__(self) -> Iterator[ScheduleInfo]:
        return iter(self.all())

    def get(self, name: str, /) -> ScheduleInfo:
        """Return one schedule. `NotFound` if there is none with this name."""
        store = self._backend.store()
        stored = store.schedules.get(name)
        declared = {name: self._declared[name]} if name in self._declared else {}
        found = schedule_infos(store, [] if stored is None else [stored], declared)
        if not found:
            raise _not_found(name)
        return found[0]

    # ------------------------------------------------------------ change
    def create(
        self,
        name: str,
        cron: str,
        request: JobRequest[object],
        /,
        *,
        tz: str = "UTC",
        catch_up: CatchUp = "last",
        by: str,
        reason: str = "",
    ) -> None:
        """Create a schedule. Its first tick is the next one from now. Every worker that has its kind runs it.

        `UsageError` if there is a schedule with this name.
        """
        schedule = Schedule(name, cron, self._check_request(request), tz, catch_up)
        if name in self._declared:
            raise UsageError(f"The code declares a schedule {name}: change that one, or choose another name.")
        store, facts = self._store("create"), facts_of(schedule)
        detail = _detail(facts)
        if not store.schedules.create(facts, by=operator_name(by), reason=_text(reason), detail=detail):
            raise UsageError(f"There is a schedule {name} already: change that one, or choose another name.")

    def change(
        self,
        name: str,
        /,
        *,
        cron: str | None = None,
        request: JobRequest[object] | None = None,
        tz: str | None = None,
        catch_up: CatchUp | None = None,
        by: str,
        reason: str = "",
    ) -> None:
        """Change a schedule. Values that you do not give stay; `request` replaces kind, arguments and options.

        A new cron line or time zone applies from now on: earlier ticks get no jobs.
        """
        if request is None and (cron, tz, catch_up) == (None, None, None):
            raise UsageError("Give what to change: cron, request, tz or catch_up.")
        store = self._store("change")
        facts = self._existing(store, name).facts
        times, old_times = (cron, tz, catch_up), (facts.cron, facts.tz, facts.catch_up)
        check_times(name, *(new if new is not None else old for new, old in zip(times, old_times, strict=True)))
        change = ScheduleChange(cron, tz, catch_up)
        detail = {key: value for key, value in asdict(change).items() if value is not None}
        if request is not None:
            asked, options = self._check_request(request), request.options
            check_storable(name, options)
            shown = shown_options(options)
            change = replace(change, kind=asked.spec.name, payload=asked.payload, options=json.dumps(shown))
            detail |= {"kind": asked.spec.name, "payload": json.loads(asked.payload), "options": shown}
        if not store.schedules.change(name, change, by=operator_name(by), reason=_text(reason), detail=detail):
            raise _not_found(name)

    def pause(self, name: str, /, *, by: str, reason: str = "") -> bool:
        """Enqueue no jobs until `resume`. False if it was paused before. Jobs that it has enqueued run as usual."""
        store = self._store("pause")
        self._existing(store, name)
        return store.schedules.pause(name, by=operator_name(by), reason=_text(reason))

    def resume(self, name: str, /, *, by: str, reason: str = "") -> bool:
        """End a pause. Ticks during the pause get no jobs. False if there is no pause."""
        store = self._store("resume")
        self._existing(store, name)
        return store.schedules.resume(name, by=operator_name(by), reason=_text(reason))

    def reset(self, name: str, /, *, by: str, reason: str = "") -> bool:
        """Discard the changes at run time. False if there were none. A pause stays."""
        store = self._store("reset")
        if not self._existing(store, name).declared:
            raise UsageError(
                f"The schedule {name} was created at run time, so no code declares it: change or delete it."
            )
        return store.schedules.reset(name, by=operator_name(by), reason=_text(reason))

    def delete(self, name: str, /, *, by: str, reason: str = "") -> None:
        """Delete a schedule that was created at run time, or that no code declares any more. Its jobs stay.

        `UsageError` if code still declares it, because a worker would store it again.
        """
        store = self._store("delete")
        stored = self._existing(store, name)
        if name in self._declared:
            raise UsageError(
                f"The code declares the schedule {name}, so a worker would store it again: pause it, or remove it from "
                "the code, restart the workers, and then delete it."
            )
        for worker in store.workers.all():
            if worker.alive and name in worker.facts.schedules:
                raise UsageError(
                    f"The code of the worker {worker.facts.name} declares the schedule {name}, so it would store it "
                    "again: pause it, or remove it from the code, restart the workers, and then delete it."
                )
        detail = _detail(stored.facts)
        if not store.schedules.delete(name, by=operator_name(by), reason=_text(reason), detail=detail):
            raise _not_found(name)

    def run_now(self, name: str, /, *, by: str, reason: str = "") -> JobHandle[object]:
        """Enqueue a job of the schedule at once, also during a pause. The ticks do not change."""
        store = self._store("run_now")
        kind = self._existing(store, name).facts.kind
        if kind not in self._kinds:
            raise UsageError(
                f"The schedule {name} enqueues jobs of kind {kind}, which this app does not have: use the app that "
                "declares it."
            )
        spec = self._kinds[kind].spec
        with schedule_transaction(store, spec, self._backend.transaction) as tx:
            stored = store.schedules.lock(name, conn=tx)
            if stored is None:
                raise _not_found(name)
            if stored.facts.kind != kind:
                raise UsageError(
                    f"The schedule {name} was changed during this call, and no job was created: check the schedule, "
                    "and try again."
                )
            requests = [request_of(spec, stored.facts)]
            (new,) = new_jobs(store, requests)
            new.actor = operator_name(by)
            (job,) = enqueue_jobs(store, requests, [new], conn=tx, transaction=None)
            detail = {"job": job.id} if job.created else {"job": job.id, "created": False}
            store.schedules.record_run(name, by=new.actor, reason=_text(reason), detail=detail, conn=tx)
        return JobHandle(job, self._backend, kind)

    # ------------------------------------------------------------ parts
    def _store(self, verb: str) -> OpenStore:
        return self._find_store(f"app.schedules.{verb}")

    def _existing(self, store: OpenStore, name: str) -> StoredSchedule:
        """Return the stored schedule. If this app declares it and no worker has stored it yet, store it first."""
        check_name("The name of a schedule", name)
        stored = store.schedules.get(name)
        if stored is None and name in self._declared:
            store.schedules.declare(facts_of(self._declared[name]))
            stored = store.schedules.get(name)
        if stored is None:
            raise _not_found(name)
        return stored

    aall = async_twin(all)  # noqa: A003 - the method
    aget = async_twin(get)
    acreate = async_twin(create)
    achange = async_twin(change)
    apause = async_twin(pause)
    aresume = async_twin(resume)
    areset = async_twin(reset)
    adelete = async_twin(delete)
    arun_now = async_twin(run_now)


def _detail(facts: ScheduleFacts) -> dict[str, Any]:
    """The whole schedule, for the operation that records the change."""
    times = {"cron": facts.cron, "tz": facts.tz, "catch_up": facts.catch_up}
    return {"kind": facts.kind} | times | {"payload": json.loads(facts.payload), "options": json.loads(facts.options)}


def _not_found(name: str) -> NotFound:
    return NotFound(f"There is no schedule {name}.")


def _text(reason: str) -> str | None:
    return clean(reason) or None
