"""Sends one large file through a courier's worker: speed, CPU and memory, compared with `curl | curl`."""

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

from apps.courier.assembly import assemble
from apps.courier.catalogue import Catalogue
from apps.courier.service import Service
from apps.courier.service_models import Person, UpdateTime
from apps.courier.settings import Settings
from apps.courier.tests.fake_telegram import TOKEN

from .databases import process_cpu

T = TypeVar("T")
GIGABYTES = 1
TIMEOUT = 600.0
POLL_INTERVAL = 0.05
USER = 1
"""A user that the fake Telegram knows, and the administrator."""
ALLOWED_MB = 64
BOUNDARY = "courier-bench"
HEAD = (
    f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="chat_id"\r\n\r\n{USER}\r\n'
    f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="document"; filename="large.bin"\r\n'
    "Content-Type: application/octet-stream\r\n\r\n"
)
TAIL = f"\r\n--{BOUNDARY}--\r\n"


@dataclass
class Transfer:
    """The measurement of one file, from the disk to Telegram."""

    what: str
    mb: float
    seconds: float
    cpu_seconds: float
    """CPU time of the sender, without the servers."""
    memory_growth_mb: float | None = None
    """Growth of the peak memory."""

    @property
    def mb_per_second(self) -> float:
        return self.mb / self.seconds

    def as_json(self) -> dict[str, object]:
        return asdict(self) | {"mb_per_second": self.mb_per_second}


def measure_transfers(directory: Path) -> list[Transfer]:
    """Send the same file with two curls in a pipe and with a worker. Telegram hashes the upload both times."""
    with ExitStack() as stack:
        (disk,) = stack.enter_context(
            _running("apps.courier.tests.fake_yandex", "--gigabytes", str(GIGABYTES), lines=1)
        )
        port = _free_port()
        stack.enter_context(_running("apps.courier.tests.fake_telegram", "--port", str(port)))
        disk_info, telegram = json.loads(disk), f"http://127.0.0.1:{port}"
        _wait_until(lambda: _is_listening(port), "Telegram listens")
        return [_by_curl(disk_info, telegram), _by_worker(disk_info, telegram, directory)]


def show(transfers: list[Transfer], console: Console) -> None:
    table = Table("one file, disk to Telegram", "MB", "s", "MB/s", "CPU s", "RSS grew by MB")
    for c in transfers:
        grown = "–" if c.memory_growth_mb is None else f"{c.memory_growth_mb:.1f}"
        table.add_row(
            c.what, f"{c.mb:,.0f}", f"{c.seconds:.1f}", f"{c.mb_per_second:,.0f}", f"{c.cpu_seconds:.1f}", grown
        )
    console.print(table)
    curl, worker = transfers
    throughput, cpu = worker.mb_per_second / curl.mb_per_second, worker.cpu_seconds / curl.cpu_seconds
    console.print(
        f"The worker reaches {throughput:.2f} of the throughput of curl | curl, at {cpu:.1f} times the CPU. "
        f"Its memory may grow by {ALLOWED_MB} MB. Both servers run on the same cores, in Python, "
        "and Telegram hashes the upload."
    )


# ---------------------------------------------------------------- worker
def _by_worker(disk: dict[str, str], telegram: str, directory: Path) -> Transfer:
    given = {
        "bot_token": TOKEN,
        "admins": str(USER),
        "folder": "/Library",
        "database_url": f"sqlite:///{directory / 'courier.db'}",
        "telegram_url": telegram,
        "yandex_url": disk["url"],
        "yandex_oauth_url": disk["oauth_url"],
        "yandex_token": disk["token"],
    }
    settings = Settings.model_validate(given)
    with closing(assemble(settings)) as courier:
        courier.migrate()
        service, catalogue = Service(courier, settings), Catalogue(courier.engine, settings.folder)
        service.register(Person(USER, "Ann"), UpdateTime(datetime.now(UTC), 1))

        async def listed() -> int:
            async with courier.clients.open():
                return (await catalogue.page(courier.clients.disk, None, 1)).entries[0].id

        file_id = asyncio.run(listed())
        size = catalogue.entry(file_id)
        assert size is not None
        assert size.size is not None
        environment = {f"COURIER_{name.upper()}": value for name, value in given.items()}
        with _worker(environment) as pid:
            (Path("/proc") / str(pid) / "clear_refs").write_text("5")
            before, cpu, began = _memory(pid, "VmRSS"), process_cpu(pid), time.perf_counter()
            job = service.order(USER, file_id, "bench")[0].job_id
            _wait_until(lambda: courier.app.get(job).ended, "the file has arrived")
            took = time.perf_counter() - began
            ended = courier.app.get(job)
            assert ended.state == "DELIVERED", ended.last_error
            assert ended.attempt == 1, ended
            return Transfer(
                "a courier worker",
                size.size / 1e6,
                took,
                process_cpu(pid) - cpu,
                (_memory(pid, "VmHWM") - before) / 1e6,
            )


@contextmanager
def _worker(environment: dict[str, str]) -> Iterator[int]:
    with _process("apps.courier", "worker", environment=environment) as (process, output):
        while "delivers" not in (line := output.readline()):
            assert line, "the worker has ended"
        yield process.pid


def _memory(pid: int, what: str) -> int:
    """Return a value of /proc/PID/status in bytes."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) * 1024


# ---------------------------------------------------------------- curl
def _by_curl(disk: dict[str, str], telegram: str) -> Transfer:
    headers = {"Authorization": f"OAuth {disk['token']}"}
    link = httpx.get(
        f"{disk['url']}/v1/disk/resources/download", params={"path": disk["path"]}, headers=headers
    ).json()["href"]
    # Not `-F document=@-`, which would read the whole file before sending the first byte.
    pipe = (
        f"{{ printf %s '{HEAD}'; curl -sSfL '{link}'; printf %s '{TAIL}'; }} | curl -sSf -X POST -T - -H 'Expect:' "
        f"-H 'Content-Type: multipart/form-data; boundary={BOUNDARY}' '{telegram}/bot{TOKEN}/sendDocument'"
    )
    cpu, began = _children_cpu(), time.perf_counter()
    done = subprocess.run(["bash", "-o", "pipefail", "-c", pipe], check=True, capture_output=True, text=True)
    took = time.perf_counter() - began
    size = json.loads(done.stdout)["result"]["document"]["file_size"]
    return Transfer("curl | curl", size / 1e6, took, _children_cpu() - cpu)


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# ---------------------------------------------------------------- processes
@contextmanager
def _process(
    *arguments: str, environment: dict[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments], env=os.environ | (environment or {}), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield process, process.stdout
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()


@contextmanager
def _running(*arguments: str, lines: int = 0) -> Iterator[list[str]]:
    """Run a server. Yield its first lines of output."""
    with _process(*arguments) as (_, output):
        yield [output.readline() for _ in range(lines)]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as made:
        return int(made.getsockname()[1])


def _is_listening(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def _wait_until(check: Callable[[], T], what: str) -> T:
    end = time.monotonic() + TIMEOUT
    while not (answer := check()):
        if time.monotonic() > end:
            raise TimeoutError(f"Waited {TIMEOUT:g} s in vain: {what}.")
        time.sleep(POLL_INTERVAL)
    return answer
