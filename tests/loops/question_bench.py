"""A blog whose jobs wait until an editor approves an article."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from interlock import App, Job, Kind, Question, Run
from interlock.engine.context import SettleContext
from interlock.engine.failpoints import Failpoint
from interlock.reconcile.answer import answer
from tests.kit import Place
from tests.loops.handler_bench import AT_ONCE, Bench
from tests.loops.reconciler_bench import Ledger

SECRET = "a secret of the blog, 24 characters"
DAYS = timedelta(days=3)
DAY = 86_400.0


class Blog(Bench):
    """Mails a link for each article, and waits three days for the answer."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, App(place.url, schema=place.schema, secret=SECRET))
        self.mails: list[str] = []
        """The tokens that were mailed."""
        self.crashes: list[Exception] = []
        """Errors that the handler raises after it has sent the mail, one per attempt."""
        self.published: list[Any] = []
        """The values that the commit function received."""
        self.errors: list[Exception] = []
        """Errors that the commit function raises, one per call."""
        self.ledger = Ledger(place)
        self.terms: dict[str, Any] = {"timeout": DAYS}
        self.publish: Kind[..., bool, Any] = self.declare("publish")

    def declare(self, name: str, **options: Any) -> Any:
        async def send_mail(link: str) -> None:
            self.mails.append(link)

        async def handler(run: Run, article: int) -> Question[bool]:
            question = run.ask(**self.terms)
            await run.effect("mail", on_doubt="retry")(send_mail, question.token)
            if self.crashes:
                raise self.crashes.pop(0)
            return question

        return self.app.job(kind=name, **{"backoff": AT_ONCE, **options})(handler)

    def migrate(self) -> None:
        first = not self._migrated
        super().migrate()
        if first:
            self.ledger.open()

    def records(self, kind: Any = None) -> None:
        """Register the commit function."""

        @(kind or self.publish).commit
        def record(tx: Any, job: Job, value: bool) -> None:
            self.published.append(value)
            self.ledger.write(tx, job, value)
            if self.errors:
                raise self.errors.pop(0)

    # ------------------------------------------------------------ asking and answering
    def asked(self, kind: Any = None, article: int = 1) -> tuple[Job, str]:
        """Return a job that waits for an answer, and its token."""
        job = self.run_one(kind or self.publish, article)
        return job, self.mails[-1]

    def left(self, job: Job) -> float:
        """Return the seconds until the next check of a job that waits."""
        last = self.last(job)
        assert (last.lease_owner, last.next_check_at) == (f"external:{last.kind}", last.lease_expires_at)
        return (last.lease_expires_at - self.now()).total_seconds()

    def answer_slowly(
        self,
        job: Job,
        value: object,
        *,
        meanwhile: Callable[[], object] | None = None,
        sleeping: Callable[[], object] | None = None,
    ) -> bool:
        """Answer from another process; something happens before its commit, or instead of a sleep."""
        blog = self

        class Sleeper:
            def monotonic(self) -> float:
                return blog.worker.sleeper.monotonic()

            def sleep(self, seconds: float, /) -> None:
                blog.clock.advance(seconds)
                if sleeping is not None:
                    sleeping()

            async def asleep(self, seconds: float, /) -> None:
                self.sleep(seconds)

        def pass_point(point: Failpoint, job: Job) -> None:
            if point is Failpoint.BEFORE_COMMIT and meanwhile is not None:
                meanwhile()

        spec = self.app.kinds[job.kind].spec
        context = SettleContext(
            "answer:slow", lambda: self.store, {job.kind: spec}, sleeper=Sleeper(), failpoints=pass_point
        )
        return answer(context, spec, job.root or job.id, value)
