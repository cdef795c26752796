"""The courier as real processes: a bot and workers that a test may kill or freeze, with two fake servers."""

import os
import re
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from sqlalchemy import text

from apps.common.database import read_only
from apps.common.tests.app_process import PROCESS_TIMEOUT, AppProcess, ForkedProcess, SpawnedProcess
from apps.common.tests.waiting import wait_until
from apps.courier import formatting
from apps.courier.assembly import assemble
from apps.courier.settings import Settings
from apps.courier.tests.fake_telegram import Document, FakeTelegram, Message, Person
from apps.courier.tests.fake_yandex import FakeDisk, GeneratedContent
from interlock import Execution, Job

T = TypeVar("T")
ROOT = Path(__file__).parents[3]
TIMEOUT = 60.0
"""Seconds within which everything happens, including the end of a lease on a busy machine."""
ADMIN, ANN, BOB = 7_001_002_003, 7_004_005_006, 7_007_008_009
"""IDs that do not occur in any text by chance."""
TOKEN = "70707:canary-canary-canary-canary"
SIZE = 3 * 2**20 + 12_345
PATH_TO_STREAMING = ["QUEUED", "CLAIMED", "DOWNLOADING", "STREAMING"]


class ForkedCourier(ForkedProcess):
    """A forked process. Preloading saves the import of aiogram's many types."""

    preload = ("apps.courier.cli", "apps.courier.bot", "apps.courier.card_updater")


class CourierProcesses:
    """One database, one fake Telegram, one fake disk, and the courier's processes."""

    def __init__(
        self,
        url: str,
        telegram: FakeTelegram,
        disk: FakeDisk,
        directory: Path,
        launcher: type[SpawnedProcess] | type[ForkedProcess],
    ) -> None:
        self.telegram, self.disk, self._launcher = telegram, disk, launcher
        given = {
            "bot_token": telegram.token,
            "admins": str(ADMIN),
            "folder": "/Library",
            "database_url": url,
            "telegram_url": telegram.url,
            "yandex_url": disk.url,
            "yandex_oauth_url": disk.oauth_url,
            "yandex_token": disk.token,
            "yandex_client_id": disk.client_id,
            "yandex_client_secret": disk.client_secret,
            "yandex_refresh_token": disk.refresh_token,
        }
        self.courier = assemble(Settings.model_validate(given))
        self.app = self.courier.app
        self.programs: list[AppProcess] = []
        self._directory = directory
        theirs = {name: value for name, value in os.environ.items() if not name.startswith("COURIER_")}
        self._environment = (
            theirs | {"PYTHONPATH": str(ROOT)} | {f"COURIER_{name.upper()}": value for name, value in given.items()}
        )
        self._secrets = {telegram.token, disk.token, disk.refresh_token, disk.client_secret}
        self.emma = disk.put("/Library/Austen/Emma.pdf", GeneratedContent(SIZE))
        self.admin = telegram.person(ADMIN, "Vera")
        self.ann, self.bob = telegram.person(ANN), telegram.person(BOB, "Bob", language="en")

    # ------------------------------------------------------------ processes
    def run(self, *arguments: str) -> AppProcess:
        log = self._directory / f"{len(self.programs)}-{arguments[1]}.log"
        # PostgreSQL shows the name of each session.
        self.programs.append(self._launcher(arguments, log, self._environment | {"PGAPPNAME": log.stem}))
        return self.programs[-1]

    def run_to_end(self, *arguments: str) -> str:
        """Run a command that must succeed. Return its output."""
        program = self.run(*arguments)
        assert program.wait() == 0, program.log
        return program.log

    def start_bot(self) -> None:
        self.bot_process = self.run("apps.courier", "bot")
        self.telegram.wait(lambda: self.telegram.is_polled, PROCESS_TIMEOUT)

    def start_worker(self) -> AppProcess:
        return self.run("apps.courier", "worker")

    def close(self) -> None:
        """Kill every running process, by its ID."""
        for program in self.programs:
            if program.code is None:
                program.kill()
        self.courier.close()

    # ------------------------------------------------------------ actions of people
    def admit(self, person: Person) -> None:
        """Let a person ask for access and the administrator press “Allow”."""
        self.admin.send_text("/start")
        self.admin.wait(lambda chat: chat, TIMEOUT)
        person.send_text("/start")
        asked = self.admin.wait(
            lambda chat: next((each for each in chat if str(person.id) in (each.text or "")), None), TIMEOUT
        )
        self.admin.press(asked, formatting.render("ru", "allow"))
        person.wait(
            lambda chat: [each for each in chat if each.text == formatting.render(person.language, "welcome")], TIMEOUT
        )

    def open_file(self, person: Person, *names: str) -> Message:
        """Open the library and then these entries in turn. Return the message."""
        before = len(person.chat)
        person.send_text("/start")
        message = person.wait(lambda chat: chat[before:] and chat[before], TIMEOUT)
        for name in names:
            self.press(person, message, name)
        return message

    def press(self, person: Person, message: Message, label: str) -> None:
        """Press the button whose label ends like this, once it exists."""
        person.press(
            message,
            person.wait(lambda _: next((each for each, _ in message.buttons if each.endswith(label)), ""), TIMEOUT),
        )

    def order(self, person: Person) -> Message:
        """Order Emma. Return the card."""
        card = self.open_file(person, "Austen", "Emma.pdf")
        self.press(person, card, formatting.render(person.language, "download"))
        return card

    def wait_for_card(self, person: Person, card: Message, key: str) -> None:
        """Wait until the card shows the text with this key."""
        person.wait(lambda _: formatting.render(person.language, key) in (card.text or "").splitlines(), TIMEOUT)

    # ------------------------------------------------------------ observations
    def wait_until(self, check: Callable[[], T], what: str, within: float = TIMEOUT) -> T:
        """Wait until `check` returns a true value, and return it."""
        try:
            return wait_until(check, what, within)
        except AssertionError as error:
            jobs = "\n".join(str(job) for job in self.app.jobs())
            logs = "\n".join(f"--- {program.name} {program.code}\n{program.log}" for program in self.programs)
            raise AssertionError(f"{error}\n{jobs}\n{logs}") from None

    def delivery(self) -> Job:
        """Return the only delivery."""
        (job,) = self.app.jobs(kind="deliver")
        return job

    def ended_delivery(self) -> Job:
        """Return the only delivery once it has ended."""
        return self.wait_until(lambda: job if (job := self.delivery()).ended else None, "the delivery has ended")

    def documents(self, person: Person) -> list[Document]:
        """Return the files that this person received, in order."""
        return [each.document for each in person.chat if each.document]

    def doubts(self) -> tuple[list[object], list[object]]:
        """Return the jobs with a stored doubt, and the sent deliveries that are marked as doubted."""
        noted, arrived = (
            self.rows("SELECT job_id FROM courier_doubts"),
            self.rows("SELECT job_id FROM courier_deliveries WHERE doubted"),
        )
        return [str(id) for (id,) in noted], [str(id) for (id,) in arrived]

    def states(self, id: str) -> list[str | None]:
        """Return the states of a job, in order."""
        return [entry.to_state for entry in self.app.history(id) if entry.n == 0]

    def execution(self) -> Execution:
        """Return the newest attempt of the only delivery."""
        return self.app.executions(self.delivery().id)[-1]

    def owner_process(self) -> AppProcess:
        """Return the worker that has the lease of the only delivery."""
        (pid,) = re.findall(r"-(\d+)#", self.execution().lease_owner)
        return next(program for program in self.programs if program.pid == int(pid))

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        with read_only(self.courier.engine).begin() as tx:
            return [tuple(row) for row in tx.execute(text(self._with_schema(sql)))]

    def write(self, sql: str) -> None:
        with self.courier.engine.begin() as tx:
            tx.exec_driver_sql(self._with_schema(sql))

    def _with_schema(self, sql: str) -> str:
        return sql if self.on_sqlite else sql.replace("interlock_", "interlock.")

    @property
    def on_sqlite(self) -> bool:
        return self.courier.engine.dialect.name == "sqlite"

    # ------------------------------------------------------------ faults
    def expire_lease(self) -> None:
        """Expire the lease without the worker noticing."""
        self.write(
            "UPDATE interlock_executions SET lease_expires_at = heartbeat_at WHERE status IN ('LEASED', 'IN_PROGRESS')"
        )

    def freeze(self, program: AppProcess) -> None:
        """Stop a process outside of a transaction, because inside it would block all writers."""
        program.signal(signal.SIGSTOP)
        while not self.wait_until(
            lambda: self._is_stopped(program), f"{program.name} stands still"
        ) or self._in_transaction(program):
            program.signal(signal.SIGCONT)
            program.signal(signal.SIGSTOP)

    @staticmethod
    def _is_stopped(program: AppProcess) -> bool:
        states = [
            (task / "stat").read_text().rpartition(")")[2].split()[0]
            for task in Path(f"/proc/{program.pid}/task").iterdir()
        ]
        return set(states) <= {"T", "Z", "X"}

    def _in_transaction(self, program: AppProcess) -> bool:
        if not self.on_sqlite:
            return (
                self.rows(
                    f"SELECT 1 FROM pg_stat_activity WHERE application_name = '{program.name}' AND state <> 'idle'"
                )
                != []
            )
        file = sqlite3.connect(str(self.courier.engine.url.database), timeout=0.5, isolation_level=None)
        try:
            # Exclusive, because a stopped reader blocks every commit too.
            file.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            return True
        finally:
            file.close()
        return False

    @contextmanager
    def blocked_commit(self) -> Iterator[None]:
        """Block the commit of a delivery. The worker has to be killed within the block."""
        counting = "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n) SELECT count(*) FROM n"
        if self.on_sqlite:
            self.write(f"CREATE TRIGGER endless BEFORE INSERT ON courier_deliveries BEGIN {counting}; END")
            yield
            self.write("DROP TRIGGER endless")
            return
        self.write(
            "CREATE FUNCTION endless() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN PERFORM pg_sleep(3600); RETURN NEW; END $$"
        )
        self.write("CREATE TRIGGER endless BEFORE INSERT ON courier_deliveries FOR EACH ROW EXECUTE FUNCTION endless()")
        yield
        # A busy session does not notice that its client is gone.
        self.rows(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND wait_event = 'PgSleep'"
        )
        self.write("DROP TRIGGER endless ON courier_deliveries")

    # ------------------------------------------------------------ secrets
    def check_no_secrets(self) -> None:
        """Check that no process printed a secret or a user ID, and that the engine stored none."""
        columns = {
            "audit": "event, actor, reason, detail",
            "executions": "error",
            "jobs": "last_error, held_reason, cancel_reason",
        }
        stored = [self.rows(f"SELECT {each} FROM interlock_{name}") for name, each in columns.items()]
        secrets = self._secrets | {self.disk.token, self.disk.refresh_token} | {str(id) for id in (ADMIN, ANN, BOB)}
        outputs = {"the engine's tables": str(stored)} | {program.name: program.log for program in self.programs}
        assert not [(where, secret) for where, words in outputs.items() for secret in secrets if secret in words]


@contextmanager
def processes(
    url: str, directory: Path, launcher: type[SpawnedProcess] | type[ForkedProcess] = ForkedCourier
) -> Iterator[CourierProcesses]:
    """Run the courier on an empty database, with a bot, two workers and Ann as an active user.

    At the end every process must exit cleanly, `verify` must find no error, and no secret may be in any output.
    """
    with ExitStack() as stack:
        telegram, disk = stack.enter_context(FakeTelegram(token=TOKEN)), stack.enter_context(FakeDisk())
        made = CourierProcesses(url, telegram, disk, directory, launcher)
        stack.callback(made.close)
        made.run_to_end("apps.courier", "migrate")
        workers = [made.start_worker(), made.start_worker()]
        made.start_bot()
        made.admit(made.ann)
        for worker in workers:
            made.wait_until(lambda worker=worker: "delivers" in worker.log, f"{worker.name} is ready", PROCESS_TIMEOUT)
        yield made
        assert {program.terminate() for program in made.programs if program.code is None} <= {0}
        assert made.app.verify().ok
        made.check_no_secrets()
