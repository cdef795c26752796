"""A reconciler stops together with its worker."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager

from interlock import Answer, App, Completed, External, Job, Run, Tx
from tests.kit import Place


def test_job_committed_during_shutdown_is_finished_before_the_worker_exits(place: Place) -> None:
    """The reconciler is in a commit when the worker is told to stop. Finish runs before the app's lifespan ends."""
    app, lived = App(place.url, schema=place.schema, lifespan=lambda: _life(lived)), list[str]()
    entered, released = threading.Event(), threading.Event()

    @app.job()
    async def fetch(run: Run) -> External[int]:
        return External("a")

    @fetch.reconcile(every=0.05)
    async def ask(ids: Sequence[str]) -> Mapping[str, Answer[int]]:
        return {"a": Completed(7)}

    @fetch.commit
    def record(tx: Tx, job: Job, value: int) -> None:
        entered.set()
        assert released.wait(30)

    @fetch.finish
    async def tell(run: Run, value: int) -> None:
        lived.append(f"finished {value}")

    async def work() -> None:
        async with app.worker():
            assert await asyncio.to_thread(entered.wait, 30)
            # Runs when the loop is free again, after the worker was told to stop.
            asyncio.get_running_loop().call_soon(released.set)

    app.migrate()
    id = fetch.enqueue().id
    asyncio.run(work())
    assert (lived, app.get(id).state) == (["alive", "finished 7", "over"], "SUCCEEDED")
    app.close()


@asynccontextmanager
async def _life(lived: list[str]) -> AsyncGenerator[None]:
    lived.append("alive")
    yield
    lived.append("over")
