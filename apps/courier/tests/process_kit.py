"""The courier as it really runs: a bot and workers in processes of their own, which a test may kill or freeze, on one database, between two real servers."""

import os
import re
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from sqlalchemy import text

from apps.common.database import reading
from apps.common.tests.programs import SLOWLY, Forked, Program, Started
from apps.common.tests.waiting import eventually
from apps.courier import words
from apps.courier.assembly import assembled
from apps.courier.settings import Settings
from apps.courier.tests.bot_api import Document, FakeTelegram, Message, Person
from apps.courier.tests.yandex import FakeDisk, Generated
from interlock import Execution, Job

T = TypeVar("T")
ROOT = Path(__file__).parents[3]
SOON = 60.0
"""Seconds within which everything here happens, the end of a lease too, even on a crowded machine."""
ADMIN, ANN, BOB = 7_001_002_003, 7_004_005_006, 7_007_008_009
"""Ids that stand in no text by chance."""
TOKEN = "70707:canary-canary-canary-canary"
SIZE = 3 * 2**20 + 12_345
WAY = ["QUEUED", "CLAIMED", "DOWNLOADING", "STREAMING"]


class Command(Forked):
    """Telegram has some hundred types."""

    preload = ("apps.courier.main", "apps.courier.bot", "apps.courier.cards")


class House:
    """One database, one Telegram, one disk, and the courier's processes. What a test looks at, it looks at from a process of its own."""

    def __init__(self, url: str, telegram: FakeTelegram, disk: FakeDisk, directory: Path, way: type[Started] | type[Forked]) -> None:
        self.telegram, self.disk, self._way = telegram, disk, way
        given = {
            "bot_token": telegram.token, "admins": str(ADMIN), "folder": "/Library", "database_url": url, "telegram_url": telegram.url,
            "yandex_url": disk.url, "yandex_oauth_url": disk.oauth_url, "yandex_token": disk.token, "yandex_client_id": disk.client_id,
            "yandex_client_secret": disk.client_secret, "yandex_refresh_token": disk.refresh_token,
        }  # fmt: skip
        self.courier = assembled(Settings.model_validate(given))
        self.app = self.courier.app
        self.programs: list[Program] = []
        self._directory = directory
        theirs = {name: value for name, value in os.environ.items() if not name.startswith("COURIER_")}
        self._environment = theirs | {"PYTHONPATH": str(ROOT)} | {f"COURIER_{name.upper()}": value for name, value in given.items()}
        self._secrets = {telegram.token, disk.token, disk.refresh_token, disk.client_secret}
        self.emma = disk.put("/Library/Austen/Emma.pdf", Generated(SIZE))
        self.admin = telegram.person(ADMIN, "Vera")
        self.ann, self.bob = telegram.person(ANN), telegram.person(BOB, "Bob", language="en")

    # ------------------------------------------------------------ processes
    def run(self, *arguments: str) -> Program:
        log = self._directory / f"{len(self.programs)}-{arguments[1]}.log"
        # Sessions of PostgreSQL are told apart by the name.
        self.programs.append(self._way(arguments, log, self._environment | {"PGAPPNAME": log.stem}))
        return self.programs[-1]

    def done(self, *arguments: str) -> str:
        """What a command says that ends by itself, and well."""
        program = self.run(*arguments)
        assert program.ended() == 0, program.log
        return program.log

    def bot(self) -> None:
        self.listener = self.run("apps.courier", "bot")
        self.telegram.wait(lambda: self.telegram.polled, SLOWLY)

    def worker(self) -> Program:
        return self.run("apps.courier", "worker")

    def close(self) -> None:
        """End every process that is left, by its id."""
        for program in self.programs:
            if program.code is None:
                program.kill()
        self.courier.close()

    # ------------------------------------------------------------ what people do
    def admit(self, person: Person) -> None:
        """They ask, and the administrator presses “Allow”."""
        self.admin.says("/start")
        self.admin.wait(lambda chat: chat, SOON)
        person.says("/start")
        asked = self.admin.wait(lambda chat: next((each for each in chat if str(person.id) in (each.text or "")), None), SOON)
        self.admin.presses(asked, words.say("ru", "allow"))
        person.wait(lambda chat: [each for each in chat if each.text == words.say(person.language, "welcome")], SOON)

    def look(self, person: Person, *names: str) -> Message:
        """Open the library, then what has these names in turn. Answers the file's card."""
        before = len(person.chat)
        person.says("/start")
        message = person.wait(lambda chat: chat[before:] and chat[before], SOON)
        for name in names:
            self.press(person, message, name)
        return message

    def press(self, person: Person, message: Message, label: str) -> None:
        """Press the button whose label ends so, as soon as there is one."""
        person.presses(message, person.wait(lambda _: next((each for each, _ in message.buttons if each.endswith(label)), ""), SOON))

    def order(self, person: Person) -> Message:
        """Emma, from the beginning. Answers the card."""
        card = self.look(person, "Austen", "Emma.pdf")
        self.press(person, card, words.say(person.language, "download"))
        return card

    def shows(self, person: Person, card: Message, key: str) -> None:
        """Wait until the card says this."""
        person.wait(lambda _: words.say(person.language, key) in (card.text or "").splitlines(), SOON)

    # ------------------------------------------------------------ what is to be seen
    def until(self, check: Callable[[], T], what: str, within: float = SOON) -> T:
        """What `check` answers as soon as that is true."""
        try:
            return eventually(check, what, within)
        except AssertionError as error:
            jobs = "\n".join(str(job) for job in self.app.jobs())
            logs = "\n".join(f"--- {program.name} {program.code}\n{program.log}" for program in self.programs)
            raise AssertionError(f"{error}\n{jobs}\n{logs}") from None

    def delivery(self) -> Job:
        """The one delivery there is."""
        (job,) = self.app.jobs(kind="deliver")
        return job

    def ended(self) -> Job:
        """The one delivery, once it has ended."""
        return self.until(lambda: job if (job := self.delivery()).ended else None, "the delivery has ended")

    def documents(self, person: Person) -> list[Document]:
        """The files that came to this person, in order."""
        return [each.document for each in person.chat if each.document]

    def doubts(self) -> tuple[list[object], list[object]]:
        """The deliveries that were in doubt, and of those that have arrived the ones that say so."""
        noted, arrived = self.rows("SELECT job_id FROM courier_doubts"), self.rows("SELECT job_id FROM courier_deliveries WHERE doubted")
        return [str(id) for (id,) in noted], [str(id) for (id,) in arrived]

    def path(self, id: str) -> list[str | None]:
        """The states in which a job was, in order."""
        return [entry.to_state for entry in self.app.history(id) if entry.n == 0]

    def execution(self) -> Execution:
        """The newest attempt at the one delivery."""
        return self.app.executions(self.delivery().id)[-1]

    def holder(self) -> Program:
        """The worker that has the one delivery in its hands."""
        (pid,) = re.findall(r"-(\d+)#", self.execution().lease_owner)
        return next(program for program in self.programs if program.pid == int(pid))

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        with reading(self.courier.engine).begin() as tx:
            return [tuple(row) for row in tx.execute(text(self._named(sql)))]

    def write(self, sql: str) -> None:
        with self.courier.engine.begin() as tx:
            tx.exec_driver_sql(self._named(sql))

    def _named(self, sql: str) -> str:
        return sql if self.on_sqlite else sql.replace("interlock_", "interlock.")

    @property
    def on_sqlite(self) -> bool:
        return self.courier.engine.dialect.name == "sqlite"

    # ------------------------------------------------------------ at the worst moment
    def lease_ends(self) -> None:
        """As if the time of the lease had passed, of which its holder knows nothing."""
        self.write("UPDATE interlock_executions SET lease_expires_at = heartbeat_at WHERE status IN ('LEASED', 'IN_PROGRESS')")

    def freeze(self, program: Program) -> None:
        """Stop a process amid what it does outside, but not inside of a transaction: nobody else could write then."""
        program.signal(signal.SIGSTOP)
        while not self.until(lambda: self._still(program), f"{program.name} stands still") or self._in_transaction(program):
            program.signal(signal.SIGCONT)
            program.signal(signal.SIGSTOP)

    @staticmethod
    def _still(program: Program) -> bool:
        states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in Path(f"/proc/{program.pid}/task").iterdir()]
        return set(states) <= {"T", "Z", "X"}

    def _in_transaction(self, program: Program) -> bool:
        if not self.on_sqlite:
            return self.rows(f"SELECT 1 FROM pg_stat_activity WHERE application_name = '{program.name}' AND state <> 'idle'") != []
        file = sqlite3.connect(str(self.courier.engine.url.database), timeout=0.5, isolation_level=None)
        try:
            # Exclusive: one that stands still while it reads keeps every writer from its commit, too.
            file.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            return True
        finally:
            file.close()
        return False

    @contextmanager
    def endless_commit(self) -> Iterator[None]:
        """A worker that writes a delivery down does not get to the end of it. It has to be killed within the block."""
        counting = "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n) SELECT count(*) FROM n"
        if self.on_sqlite:
            self.write(f"CREATE TRIGGER endless BEFORE INSERT ON courier_deliveries BEGIN {counting}; END")
            yield
            self.write("DROP TRIGGER endless")
            return
        self.write("CREATE FUNCTION endless() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(3600); RETURN NEW; END $$")
        self.write("CREATE TRIGGER endless BEFORE INSERT ON courier_deliveries FOR EACH ROW EXECUTE FUNCTION endless()")
        yield
        # A session that is busy does not see that its client is gone.
        self.rows("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'")
        self.write("DROP TRIGGER endless ON courier_deliveries")

    # ------------------------------------------------------------ nobody's business
    def check_silence(self) -> None:
        """No process has printed a secret or somebody's id, and the engine has kept none where people read."""
        columns = {"audit": "event, actor, reason, detail", "executions": "error", "jobs": "last_error, held_reason, cancel_reason"}
        kept = [self.rows(f"SELECT {each} FROM interlock_{name}") for name, each in columns.items()]
        secrets = self._secrets | {self.disk.token, self.disk.refresh_token} | {str(id) for id in (ADMIN, ANN, BOB)}
        said = {"the engine's tables": str(kept)} | {program.name: program.log for program in self.programs}
        assert not [(where, secret) for where, words in said.items() for secret in secrets if secret in words]


@contextmanager
def house(url: str, directory: Path, way: type[Started] | type[Forked] = Command) -> Iterator[House]:
    """A house on an empty database, with a bot that listens, two workers, and Ann let in.

    Whatever befell it, every process that is left ends well, the engine's books are right, and nobody's secrets were told.
    """
    with ExitStack() as stack:
        telegram, disk = stack.enter_context(FakeTelegram(token=TOKEN)), stack.enter_context(FakeDisk())
        made = House(url, telegram, disk, directory, way)
        stack.callback(made.close)
        made.done("apps.courier", "migrate")
        workers = [made.worker(), made.worker()]
        made.bot()
        made.admit(made.ann)
        for worker in workers:
            made.until(lambda worker=worker: "delivers" in worker.log, f"{worker.name} is ready", SLOWLY)
        yield made
        assert {program.end() for program in made.programs if program.code is None} <= {0}
        assert made.app.verify().ok
        made.check_silence()
