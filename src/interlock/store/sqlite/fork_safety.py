"""Makes `os.fork` safe: no connection to a SQLite file is open while this process forks.

SQLite keeps its locks per process and counts them in memory. A child that inherits an open connection counts locks
that it does not have, so its later connections take none, and their writes can be lost. Therefore a fork waits until
every other thread has ended its statement or transaction, and closes all connections; parent and child open new ones
when they next need them. If a connection stays in use, the parent keeps it, and the child refuses to open the file.
"""

import ctypes
import os
import stat
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakSet

from ...errors import UsageError

FORK_WAIT = 10.0
"""Seconds that a fork waits for the statements and transactions of other threads; SQLite waits 5 s for a lock."""
PROBE = 5.0
"""Seconds after which a forked process concludes that a thread of its parent has locked SQLite."""
DESCRIPTORS = ("/proc/self/fd", "/dev/fd")

FileId = tuple[int, int]
"""Device and inode, by which SQLite also identifies a file."""


class Closing(Protocol):
    """The part of a database file that fork safety needs."""

    users: int
    """How many statements and transactions run on it now. Changed by `Uses` alone."""

    def close_connections(self) -> None:
        """Close all connections. Called in the parent when none is in use."""
        ...

    def after_fork(self) -> tuple[list[Any], FileId | None]:
        """Forget all locks and connections in the child. Returns the inherited open connections and the file's id."""
        ...


class Use:
    """One running statement or transaction, and its thread and file."""

    __slots__ = ("file", "pid", "thread")

    def __init__(self, file: Closing, pid: int) -> None:
        self.file, self.pid, self.thread = file, pid, threading.get_ident()


class _Block:
    """A `with` block; `contextmanager` would cost as much as a small statement does."""

    __slots__ = ("_file", "_use", "_uses")

    def __init__(self, uses: "Uses", file: Closing) -> None:
        self._uses, self._file = uses, file

    def __enter__(self) -> None:
        self._use = self._uses.begin(self._file)

    def __exit__(self, *raised: object) -> None:
        self._uses.end(self._use)


class Uses:
    """The statements and transactions that run in this process, on all its SQLite files."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._threads: dict[int, int] = {}
        self._files: WeakSet[Closing] = WeakSet()
        self._forks = 0
        self._inherited: set[FileId] = set()
        self._forked = False
        self._probes: dict[str, threading.Event] = {}

    def register(self, file: Closing) -> None:
        with self._lock:
            self._files.add(file)

    # ------------------------------------------------------------ statements and transactions
    def of(self, file: Closing) -> "_Block":
        """Register a statement or transaction for the duration of a block."""
        return _Block(self, file)

    def begin(self, file: Closing) -> Use:
        """Wait for a fork that is under way, unless this thread is one that the fork waits for."""
        pid = os.getpid()
        if pid != self._pid:
            # C code forked this process without calling hooks.
            self.after_in_child()
        use = Use(file, pid)
        with self._lock:
            while self._forks and use.thread not in self._threads:
                self._changed.wait()
            self._threads[use.thread] = self._threads.get(use.thread, 0) + 1
            file.users += 1
        return use

    def end(self, use: Use) -> None:
        if use.pid != os.getpid():
            return
        with self._lock:
            left = self._threads[use.thread] - 1
            if left:
                self._threads[use.thread] = left
            else:
                del self._threads[use.thread]
            use.file.users -= 1
            if self._forks:
                self._changed.notify_all()

    # ------------------------------------------------------------ forks
    def before(self) -> None:
        """Wait until the other threads are idle, then close the connections to every file that is not in use."""
        me = threading.get_ident()
        end = time.monotonic() + FORK_WAIT
        with self._lock:
            self._forks += 1
            while any(thread != me for thread in self._threads) and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            for file in [each for each in self._files if not each.users]:
                file.close_connections()

    def after_in_parent(self) -> None:
        with self._lock:
            self._forks -= 1
            self._changed.notify_all()

    def after_in_child(self) -> None:
        """Reset the state. Files with an inherited open connection, ours or a caller's, are refused from now on."""
        self._pid, self._lock, self._threads, self._forks = os.getpid(), threading.RLock(), {}, 0
        self._changed = threading.Condition(self._lock)
        for file in list(self._files):
            left, id = file.after_fork()
            file.users = 0
            for connection in left:
                # Closing it could end the parent's transaction in the file, so it is never freed, not even at exit.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
            if left and id is not None:
                self._inherited.add(id)
        self._inherited |= _open_files()
        self._forked, self._probes = True, {}

    def check_inherited(self, path: str) -> None:
        """`UsageError` if this process was forked while a connection to the file was open."""
        with suppress(OSError):
            if self._inherited and file_id(path) in self._inherited:
                raise UsageError(
                    f"{path} cannot be used in this process, which was forked while a connection to the file was open: "
                    "SQLite's locks do not survive a fork. Fork outside of transactions, close your own connections to "
                    "the file first (Django: connections.close_all(), SQLAlchemy: engine.dispose()), or start the "
                    "process by spawn."
                )

    def check_library(self, name: str, touch: Callable[[], object]) -> None:
        """`UsageError` if this process was forked while another thread used SQLite for another file.

        That thread may have locked a mutex of the library, so a probe thread tries the library first.
        """
        if not self._forked:
            return
        passed = self._probes.get(name)
        if passed is None:
            passed = self._probes[name] = threading.Event()
            threading.Thread(target=_probe, args=(touch, passed), name="interlock-fork-probe", daemon=True).start()
        if not passed.wait(PROBE):
            raise UsageError(
                f"SQLite ({name}) cannot be used in this process, which was forked while another thread was using "
                "SQLite. Fork before such threads start, or while they are idle, or start the process by spawn."
            )


def _probe(touch: Callable[[], object], passed: threading.Event) -> None:
    # The caller will get the same error itself; the probe only detects a call that never returns.
    with suppress(Exception):
        touch()
    passed.set()


def file_id(path: str) -> FileId:
    found = os.stat(path)  # noqa: PTH116 - asked for at every transaction, and twice as quick
    return found.st_dev, found.st_ino


def _open_files() -> set[FileId]:
    """The regular files that this process has open."""
    for directory in DESCRIPTORS:
        with suppress(OSError):
            return {(found.st_dev, found.st_ino) for found in _stats(Path(directory)) if stat.S_ISREG(found.st_mode)}
    return set()


def _stats(directory: Path) -> Generator[os.stat_result]:
    for descriptor in directory.iterdir():
        # The directory itself was open only while it was listed.
        with suppress(OSError):
            yield os.fstat(int(descriptor.name))


uses = Uses()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=uses.before, after_in_parent=uses.after_in_parent, after_in_child=uses.after_in_child)
