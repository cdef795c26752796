"""The app of the log tests, `tests.crash.logging_app:app`: handlers log in the event loop, in threads and in child processes."""

import logging
import os
from collections.abc import Generator
from contextlib import contextmanager

from interlock import App, Run, SyncRun
from tests.crash.crash_app import QUICK, Setting

log = logging.getLogger("shop")


def build(setting: Setting) -> App:
    app = App(setting.url, schema=setting.schema)

    @app.around_attempt
    @contextmanager
    def around() -> Generator[None]:
        log.info("around from pid %d", os.getpid())
        yield

    async def talk(run: Run, tag: str) -> None:
        log.info("hello from the loop")

    def sync_talk(run: SyncRun, tag: str) -> None:
        log.info("hello from pid %d", os.getpid())

    def fails(run: SyncRun, tag: str) -> None:
        raise ValueError("no money")

    app.job(kind="loop", lease=setting.lease)(talk)
    app.job(kind="thread", lease=setting.lease)(sync_talk)
    app.job(kind="child", lease=setting.lease, process=True)(sync_talk)
    app.job(kind="async_child", lease=setting.lease, process=True)(talk)
    app.job(kind="failing", lease=setting.lease, tries=2, backoff=QUICK)(fails)
    app.job(kind="failing_child", lease=setting.lease, tries=2, backoff=QUICK, process=True)(fails)
    return app


app = build(Setting.of(os.environ))
