"""The app of the supervisor tests, `tests.crash.supervised_app:app`: jobs that a test lets end, and one that hangs."""

import asyncio
import os
import time
from pathlib import Path

from interlock import App, Run
from tests.crash import crash_app
from tests.crash.crash_app import QUICK, ExternalWork, Setting, effect_in


def gate(setting: Setting) -> Path:
    """Return the file that lets `gated` jobs end."""
    return Path(f"{setting.ledger}.gate")


def build(setting: Setting) -> App:
    app = crash_app.build(setting)
    outside = ExternalWork(setting)

    async def wait(run: Run, tag: str) -> str:
        outside.note("prepare", tag, run.attempt)
        while not gate(setting).exists():  # noqa: ASYNC110 - the test is another process
            await asyncio.sleep(0.02)
        return tag

    async def hang(run: Run, tag: str) -> None:
        os._exit(70)

    app.job(kind="gated", lease=setting.lease, backoff=QUICK)(wait).commit(effect_in(setting))
    app.job(kind="hung", lease=setting.lease, backoff=QUICK, tries=1)(hang)
    return app


def wait_while_imported(setting: Setting) -> None:
    """Import as slowly as the test wishes."""
    ExternalWork(setting).note("import", "app", 0)
    while not gate(setting).exists():
        time.sleep(0.02)


if "LAB_SLOW_IMPORT" in os.environ:
    wait_while_imported(Setting.of(os.environ))
app = build(Setting.of(os.environ))
