"""One large file through a courier's worker: how fast, at what price, and whether memory grows with it; beside `curl | curl` between the same two servers."""

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TypeVar

import httpx
from rich.console import Console
from rich.table import Table

from apps.courier.assembly import assembled
from apps.courier.catalogue import Catalogue
from apps.courier.desk import Desk, Moment, Person
from apps.courier.settings import Settings
from apps.courier.tests.bot_api import TOKEN

from .databases import process_cpu

T = TypeVar("T")
GIGABYTES = 1
LONGEST = 600.0
LOOK = 0.05
USER = 1
"""Somebody whom the Telegram for measurements knows, and the administrator."""
ALLOWED_MB = 64
BOUNDARY = "courier-bench"
HEAD = (
    f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="chat_id"\r\n\r\n{USER}\r\n'
    f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="document"; filename="large.bin"\r\nContent-Type: application/octet-stream\r\n\r\n')
TAIL = f"\r\n--{BOUNDARY}--\r\n"


@dataclass
class Carried:
    """One file, from the disk to Telegram."""

    what: str
    mb: float
    seconds: float
    cpu_seconds: float
    """Of who carried it; the servers have their own."""
    grown_mb: float | None = None
    """The peak of its memory above what it had before."""

    @property
    def mb_per_second(self) -> float:
        return self.mb / self.seconds

    def as_json(self) -> dict[str, object]:
        return asdict(self) | {"mb_per_second": self.mb_per_second}


def carry(directory: Path) -> list[Carried]:
    """The same file twice: by a worker, and by two curls in a pipe. Telegram takes it as an upload both times, and hashes it."""
    with ExitStack() as stack:
        (disk,) = stack.enter_context(_running("apps.courier.tests.yandex", "--gigabytes", str(GIGABYTES), lines=1))
        port = _free_port()
        stack.enter_context(_running("apps.courier.tests.bot_api", "--port", str(port)))
        told, telegram = json.loads(disk), f"http://127.0.0.1:{port}"
        _until(lambda: _listens(port), "Telegram listens")
        return [_by_curl(told, telegram), _by_worker(told, telegram, directory)]


def show(carried: list[Carried], console: Console) -> None:
    table = Table("one file, disk to Telegram", "MB", "s", "MB/s", "CPU s", "RSS grew by MB")
    for c in carried:
        grown = "–" if c.grown_mb is None else f"{c.grown_mb:.1f}"
        table.add_row(c.what, f"{c.mb:,.0f}", f"{c.seconds:.1f}", f"{c.mb_per_second:,.0f}", f"{c.cpu_seconds:.1f}", grown)
    console.print(table)
    curl, worker = carried
    throughput, cpu = worker.mb_per_second / curl.mb_per_second, worker.cpu_seconds / curl.cpu_seconds
    console.print(
        f"The worker reaches {throughput:.2f} of the throughput of curl | curl, at {cpu:.1f} times the CPU. "
        f"Its memory may grow by {ALLOWED_MB} MB. Both servers run on the same cores, in Python, and Telegram hashes what it gets.")


# ---------------------------------------------------------------- by the worker
def _by_worker(disk: dict[str, str], telegram: str, directory: Path) -> Carried:
    given = {
        "bot_token": TOKEN, "admins": str(USER), "folder": "/Library", "database_url": f"sqlite:///{directory / 'courier.db'}", "telegram_url": telegram,
        "yandex_url": disk["url"], "yandex_oauth_url": disk["oauth_url"], "yandex_token": disk["token"],
    }
    settings = Settings.model_validate(given)
    with closing(assembled(settings)) as courier:
        courier.migrate()
        desk, catalogue = Desk(courier, settings), Catalogue(courier.engine, settings.folder)
        desk.register(Person(USER, "Ann"), Moment(datetime.now(UTC), 1))

        async def listed() -> int:
            async with courier.outside.open():
                return (await catalogue.page(courier.outside.disk, None, 1)).entries[0].id

        file_id = asyncio.run(listed())
        size = catalogue.entry(file_id)
        assert size is not None
        assert size.size is not None
        environment = {f"COURIER_{name.upper()}": value for name, value in given.items()}
        with _worker(environment) as pid:
            (Path("/proc") / str(pid) / "clear_refs").write_text("5")
            before, cpu, began = _memory(pid, "VmRSS"), process_cpu(pid), time.perf_counter()
            job = desk.order(USER, file_id, "bench")[0].job_id
            _until(lambda: courier.app.get(job).ended, "the file has arrived")
            took = time.perf_counter() - began
            ended = courier.app.get(job)
            assert ended.state == "DELIVERED", ended.last_error
            assert ended.attempt == 1, ended
            return Carried("a worker of the courier", size.size / 1e6, took, process_cpu(pid) - cpu, (_memory(pid, "VmHWM") - before) / 1e6)


@contextmanager
def _worker(environment: dict[str, str]) -> Iterator[int]:
    with _process("apps.courier", "worker", environment=environment) as (process, output):
        while "delivers" not in (line := output.readline()):
            assert line, "the worker has ended"
        yield process.pid


def _memory(pid: int, what: str) -> int:
    """Bytes, of what /proc says by this name."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) * 1024


# ---------------------------------------------------------------- by curl
def _by_curl(disk: dict[str, str], telegram: str) -> Carried:
    headers = {"Authorization": f"OAuth {disk['token']}"}
    link = httpx.get(f"{disk['url']}/v1/disk/resources/download", params={"path": disk["path"]}, headers=headers).json()["href"]
    # Not `-F document=@-`, which would read all of it before it sends the first byte.
    pipe = (
        f"{{ printf %s '{HEAD}'; curl -sSfL '{link}'; printf %s '{TAIL}'; }} | curl -sSf -X POST -T - -H 'Expect:' "
        f"-H 'Content-Type: multipart/form-data; boundary={BOUNDARY}' '{telegram}/bot{TOKEN}/sendDocument'")
    cpu, began = _children_cpu(), time.perf_counter()
    done = subprocess.run(["bash", "-o", "pipefail", "-c", pipe], check=True, capture_output=True, text=True)
    took = time.perf_counter() - began
    size = json.loads(done.stdout)["result"]["document"]["file_size"]
    return Carried("curl | curl", size / 1e6, took, _children_cpu() - cpu)


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# ---------------------------------------------------------------- processes
@contextmanager
def _process(*arguments: str, environment: dict[str, str] | None = None) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    process = subprocess.Popen([sys.executable, "-m", *arguments], env=os.environ | (environment or {}), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, process.stdout
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()


@contextmanager
def _running(*arguments: str, lines: int = 0) -> Iterator[list[str]]:
    """A server, and what it says first."""
    with _process(*arguments) as (_, output):
        yield [output.readline() for _ in range(lines)]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as made:
        return int(made.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def _until(check: Callable[[], T], what: str) -> T:
    end = time.monotonic() + LONGEST
    while not (answer := check()):
        if time.monotonic() > end:
            raise TimeoutError(f"Waited {LONGEST:g} s in vain: {what}.")
        time.sleep(LOOK)
    return answer
