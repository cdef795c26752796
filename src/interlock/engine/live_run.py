"""What a handler really holds: `Run` and `SyncRun` over one grip, and the ledger through which they write."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from ..effect import BEFORE_OR_AFTER, DOUBTS, Book, Called, Hop, Ledger, OnDoubt, adrive, drive, effect, step
from ..errors import LeaseLost, UsageError
from ..events import Measured
from ..outcome import Advanced
from ..payload import check_name
from ..records import Receipt
from ..stores.inside import refuse_inside
from .desk import Desk
from .grip import Grip
from .settle import Item, Settler

T = TypeVar("T")


class StoreLedger:
    """A ledger that is the store itself, under the grip's fence."""

    def __init__(self, desk: Desk, settler: Settler, grip: Grip) -> None:
        self._desk = desk
        self._settler = settler
        self._grip = grip

    def check(self) -> None:
        self._grip.check()

    def outside(self, verb: str) -> None:
        refuse_inside(self._desk.store, verb, BEFORE_OR_AFTER)

    def advance(self, stage: str) -> None:
        self.check()
        item = Item(self._grip, Advanced(stage), done=_nothing)
        self._settler.alone(item)
        if item.error is not None:
            raise item.error

    def receipts(self) -> list[Receipt]:
        return self._desk.persistently(lambda: self._desk.store.receipts(self._grip.job.id), "receipts")

    def remember(self, name: str, args_hash: str, value: str) -> None:
        self._fenced(lambda: self._desk.store.remember(self._grip.fence, name, args_hash, value))

    def ask(self, name: str, args_hash: str) -> None:
        self.check()
        self._fenced(lambda: self._desk.store.ask(self._grip.fence, name, args_hash))

    def apply(self, name: str, value: str | None, decided_by: str) -> None:
        # What is known is written whether or not we may still go on.
        self._fenced(lambda: self._desk.store.apply(self._grip.fence, name, value, decided_by=decided_by))

    def unask(self, name: str) -> None:
        self._desk.persistently(lambda: self._desk.store.unask(self._grip.fence, name), "receipts")

    def _fenced(self, write: Callable[[], bool]) -> None:
        if not self._desk.persistently(write, "receipts"):
            self._grip.halt("lost")
            raise LeaseLost(f"Job {self._grip.job.id}, attempt {self._grip.job.attempt}, is not ours any more: nothing was written.")


def _nothing(item: Item) -> None:
    del item


class Facts:
    """What both kinds of run tell and take."""

    def __init__(self, grip: Grip, ledger: Ledger, measured: Callable[[Measured], None]) -> None:
        job = grip.job
        self.job_id: str = job.id
        self.exec_id: str = f"{job.id}:{job.attempt}"
        self.attempt: int = job.attempt
        self.payload: Mapping[str, Any] = job.payload
        self._grip = grip
        self._ledger = ledger
        self._measured = measured
        self._opened: Book | None = None

    @property
    def cancelled(self) -> bool:
        return self._grip.stop is not None

    @property
    def _book(self) -> Book:
        if self._opened is None:
            self._opened = Book(self._ledger, self._grip.job.root or self.job_id)
        return self._opened

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        self._grip.progress(done, total, note)

    def measure(self, name: str, value: float) -> None:
        self._grip.measure(check_name("The name of a measure", name), value)
        self._measured(Measured(self.job_id, self._grip.job.kind, name, float(value)))


class LiveRun(Facts):
    """`Run`, in an event loop."""

    def __init__(self, grip: Grip, ledger: Ledger, measured: Callable[[Measured], None], *, hop: Hop, write: Hop,
                 advance: Callable[[str], Awaitable[None]]) -> None:
        super().__init__(grip, ledger, measured)
        self._hop, self._write = hop, write
        self._advance = advance

    async def step(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self._ledger.outside("run.step")
        return await adrive(step(self._book, name, Called(fn, args, kwargs)), self._hop, self._write)

    async def advance(self, stage: str, /) -> None:
        self._ledger.outside("run.advance")
        self._grip.check()
        await self._advance(stage)

    def effect(self, name: str, /, *, on_doubt: OnDoubt) -> "LiveEffect":
        return LiveEffect(self._book, check_name("The name of an effect", name), _doubt(on_doubt), self._hop, self._write)


class LiveEffect:
    """One outside call of an async handler."""

    def __init__(self, book: Book, name: str, on_doubt: OnDoubt, hop: Hop, write: Hop) -> None:
        self.key = book.key(name)
        self._book, self._name, self._hop, self._write = book, name, hop, write
        self._on_doubt: OnDoubt = on_doubt

    async def __call__(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self._book.ledger.outside("run.effect")
        return await adrive(effect(self._book, self._name, self._on_doubt, Called(fn, args, kwargs)), self._hop, self._write)


class LiveSyncRun(Facts):
    """`SyncRun`, in a thread or a process of its own."""

    def step(self, name: str, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        self._ledger.outside("run.step")
        value: T = drive(step(self._book, name, Called(fn, args, kwargs)))
        return value

    def advance(self, stage: str, /) -> None:
        self._ledger.outside("run.advance")
        self._ledger.advance(stage)

    def effect(self, name: str, /, *, on_doubt: OnDoubt) -> "LiveSyncEffect":
        if callable(on_doubt):
            raise UsageError(f"The effect {name!r} would look the truth up, which only an async handler can: give on_doubt one of {', '.join(DOUBTS)}.")
        return LiveSyncEffect(self._book, check_name("The name of an effect", name), _doubt(on_doubt))


class LiveSyncEffect:
    """One outside call of a `def` handler."""

    def __init__(self, book: Book, name: str, on_doubt: OnDoubt) -> None:
        self.key = book.key(name)
        self._book, self._name = book, name
        self._on_doubt: OnDoubt = on_doubt

    def __call__(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        self._book.ledger.outside("run.effect")
        value: T = drive(effect(self._book, self._name, self._on_doubt, Called(fn, args, kwargs)))
        return value


def _doubt(on_doubt: OnDoubt) -> OnDoubt:
    if not callable(on_doubt) and on_doubt not in DOUBTS:
        raise UsageError(f"on_doubt is {on_doubt!r}: give one of {', '.join(DOUBTS)}, or an async function that looks the truth up.")
    return on_doubt
