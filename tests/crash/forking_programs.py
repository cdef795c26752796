"""Programs that fork, for test_forks.py: each process prints the ids of the jobs it has stored."""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module

from interlock import App, InterlockError, SyncRun
from interlock.store.sqlite import fork_safety

warnings.filterwarnings("ignore", ".*fork", DeprecationWarning)

LIFE = 90
"""Seconds after which a hanging process ends itself."""
CHILDREN = 6
URL, SCHEMA, SCENE = sys.argv[1:] if len(sys.argv) == 4 else ("sqlite:///unused.db", "interlock", "")


def build() -> App:
    app = App(URL, schema=SCHEMA)

    @app.job()
    def greet(run: SyncRun, name: str) -> None: ...

    @app.job()
    def fork(run: SyncRun) -> None:
        wait_for([child(lambda: store(3))])

    return app


app = build()


def say(word: str, text: object) -> None:
    """Write one whole line, even if other processes write at the same time."""
    os.write(1, f"{word} {text}\n".encode())


def store(count: int, by: App | None = None) -> None:
    for number in range(count):
        say("stored", (by or app).kinds["greet"].enqueue(str(number)).id)


def refused(what: str, body: Callable[[], object]) -> None:
    """Print whether this is refused; print the id of a job that it stores."""
    try:
        job = body()
    except InterlockError as error:
        say("refused", f"{what}: {type(error).__name__}: {error}")
    else:
        stored = getattr(job, "id", None)
        say("stored" if stored else "allowed", stored or what)


def child(body: Callable[[], object]) -> int:
    """Fork a process that ends after `body`."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(LIFE)
        code = 1
        try:
            body()
            code = 0
        finally:
            if code:
                sys.excepthook(*sys.exc_info())
            os._exit(code)
    return pid


def wait_for(pids: list[int]) -> None:
    for pid in pids:
        say("ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def look_from_another() -> None:
    """Let another process open the database, read and exit."""
    subprocess.run([sys.executable, "-m", "tests.crash.forking_programs", URL, SCHEMA, "look"], check=True)


@contextmanager
def busy(threads: int) -> Iterator[None]:
    """Run threads that store and read all the time."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            store(1)
            app.jobs(limit=20)
            # Let the children use the database, too.
            time.sleep(0.01)

    working = [threading.Thread(target=work) for _ in range(threads)]
    for thread in working:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in working:
            thread.join()


# ---------------------------------------------------------------- scenes
def look() -> None:
    app.jobs(limit=1)
    app.close()


def daemon() -> None:
    """The parent exits, and the daemon continues."""
    store(1)
    read, write = os.pipe()
    if os.fork():
        app.close()
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.alarm(LIFE)
    os.close(write)
    # The pipe ends when every ancestor has exited.
    os.read(read, 1)
    store(100)
    look_from_another()
    store(100)


def daemon_of_an_open_parent() -> None:
    """The parent exits normally without closing its app."""
    store(1)
    read, write = os.pipe()
    if os.fork():
        sys.exit(0)
    signal.alarm(LIFE)
    os.close(write)
    os.read(read, 1)
    store(100)
    look_from_another()
    store(100)


def prefork() -> None:
    """A master that used the app forks workers and continues."""
    store(5)
    pids = [child(lambda: store(25)) for _ in range(4)]
    store(25)
    wait_for(pids)
    pids = [child(lambda: wait_for([child(lambda: store(10))])) for _ in range(2)]
    look_from_another()
    store(5)
    wait_for(pids)


def pool() -> None:
    store(5)
    with multiprocessing.get_context("fork").Pool(3) as workers:
        workers.map(store, [10] * 6)
        store(5)
        workers.map(store, [10] * 6)


def while_threads_write() -> None:
    with busy(3):
        for _ in range(CHILDREN):
            time.sleep(0.05)
            wait_for([child(lambda: store(10))])
        wait_for([child(lambda: store(10)) for _ in range(CHILDREN)])
    look_from_another()
    store(1)


def while_threads_fork() -> None:
    """Several threads fork at once, and others store."""
    store(1)
    with busy(2):
        forking = [threading.Thread(target=lambda: wait_for([child(lambda: store(5))])) for _ in range(CHILDREN)]
        for thread in forking:
            thread.start()
        for thread in forking:
            thread.join()


def in_a_worker() -> None:
    """Handlers fork while the worker's own threads use the database."""
    for _ in range(CHILDREN):
        app.kinds["fork"].enqueue()
    app.run_until_idle(timeout=LIFE)


def in_a_transaction() -> None:
    """The child may neither use nor end the transaction; the parent commits it."""
    store(1)
    with app.transaction() as tx:
        job = app.kinds["greet"].using(conn=tx).enqueue("parent")
        if os.fork() == 0:
            signal.alarm(LIFE)
            refused("execute", lambda: tx.execute("SELECT 1"))
            refused("conn=", lambda: app.kinds["greet"].using(conn=tx).enqueue("child"))
            refused("app", lambda: app.kinds["greet"].enqueue("child"))
            refused("new app", lambda: build().kinds["greet"].enqueue("child"))
            # The child then leaves the block and exits.
        else:
            say("ended", os.waitstatus_to_exitcode(os.wait()[1]))
    say("stored", job.id)
    store(5)


def leaves_a_transaction() -> None:
    """The child raises inside the block."""
    store(1)
    with app.transaction() as tx:
        job = app.kinds["greet"].using(conn=tx).enqueue("parent")
        if os.fork() == 0:
            sys.exit(7)
        say("ended", os.waitstatus_to_exitcode(os.wait()[1]))
    say("stored", job.id)
    store(5)


def beside_a_transaction() -> None:
    """Another thread stays inside a transaction for longer than a fork waits."""
    fork_safety.FORK_WAIT = 0.2
    store(1)
    begun, forked = threading.Event(), threading.Event()

    def stay() -> None:
        with app.transaction() as tx:
            job = app.kinds["greet"].using(conn=tx).enqueue("parent")
            begun.set()
            forked.wait()
        say("stored", job.id)

    thread = threading.Thread(target=stay)
    thread.start()
    begun.wait()
    pid = child(lambda: refused("app", lambda: app.kinds["greet"].enqueue("child")))
    forked.set()
    thread.join()
    wait_for([pid])
    store(5)


def with_a_connection_of_the_caller() -> None:
    store(1)
    url, _, path = URL.partition("://")
    own = import_module("pysqlite3" if "pysqlite3" in url else "sqlite3").connect(path[1:])
    own.execute("SELECT count(*) FROM interlock_jobs").fetchall()
    wait_for([child(lambda: refused("app", lambda: build().kinds["greet"].enqueue("child")))])
    own.close()
    wait_for([child(lambda: store(5))])
    store(5)


def beside_other_files() -> None:
    """Threads of the program use SQLite for other files that Interlock does not know."""
    fork_safety.PROBE = 2.0
    store(1)
    url, _, path = URL.partition("://")
    library = import_module("pysqlite3" if "pysqlite3" in url else "sqlite3")
    stop = threading.Event()

    def use(number: int) -> None:
        while not stop.is_set():
            own = library.connect(f"{path[1:]}.{number}", isolation_level=None)
            own.execute("PRAGMA synchronous=off")
            own.execute("CREATE TABLE IF NOT EXISTS t (x)")
            for _ in range(20):
                own.execute("INSERT INTO t VALUES (randomblob(2000))")
                own.execute("SELECT sum(length(x)) FROM t").fetchall()
            own.execute("DELETE FROM t")
            own.close()

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    wait_for([child(lambda: refused("app", lambda: app.kinds["greet"].enqueue("child"))) for _ in range(20)])
    stop.set()
    for thread in threads:
        thread.join()


def by_c_code() -> None:
    """A fork that Python does not notice."""
    store(1)
    pid = ctypes.CDLL(None).fork()
    if pid == 0:
        signal.alarm(LIFE)
        refused("app", lambda: app.kinds["greet"].enqueue("child"))
        refused("new app", lambda: build().kinds["greet"].enqueue("child"))
        os._exit(0)
    wait_for([pid])
    store(5)


if __name__ == "__main__":
    signal.alarm(LIFE)
    {
        scene.__name__: scene
        for scene in (
            look,
            daemon,
            daemon_of_an_open_parent,
            prefork,
            pool,
            while_threads_write,
            while_threads_fork,
            in_a_worker,
            in_a_transaction,
            leaves_a_transaction,
            beside_a_transaction,
            with_a_connection_of_the_caller,
            beside_other_files,
            by_c_code,
        )
    }[SCENE]()
