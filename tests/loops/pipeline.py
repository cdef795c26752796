"""An app with a pipeline: parts, a total that waits for them, and a report that waits for the total."""

from typing import Any

from interlock import App, Fail, Run


class Pipeline:
    """An app whose parts fail as long as they are broken."""

    def __init__(self, url: str, schema: str) -> None:
        self.app = App(url, schema=schema)
        self.broken: set[int] = set()

        @self.app.job(tries=1)
        async def part(run: Run, n: int) -> int:
            if n in self.broken:
                raise Fail("broken")
            return n

        @self.app.job
        async def total(run: Run) -> int:
            return sum(await run.results(part))

        @self.app.job
        async def report(run: Run) -> int:
            return sum(await run.results(total))

        self.part, self.total, self.report = part, total, report
        self.app.migrate()

    def ends(self, kind: str) -> list[tuple[str, Any]]:
        """Return the state and result of each job of the kind, in the order of creation."""
        return [(job.state, job.result) for job in reversed(self.app.jobs(kind=kind))]

    def failed_parts(self) -> list[str]:
        return [job.id for job in reversed(self.app.jobs(kind="part", state="FAILED"))]
