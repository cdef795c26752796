"""Two releases of one app, `tests.crash.release_apps:old` and `:new`: the same names with different lifecycles."""

import os

from interlock import App, Lifecycle, Run
from interlock.jobs.results import Retry
from tests.crash.crash_app import QUICK, ExternalWork, Setting

_COMMON = [("NEW", "claim", "BUSY"), ("BUSY", "succeed", "OK"), ("BUSY", "fail", "BAD")]
OLD = Lifecycle("press", transitions=[*_COMMON, ("BUSY", "retry", "PAUSED"), ("PAUSED", "claim", "BUSY")])
NEW = Lifecycle(
    "press",
    transitions=[
        *_COMMON,
        ("BUSY", "retry", "NEW"),
        ("BUSY", "advance", "PRINTING"),
        ("PRINTING", "succeed", "OK"),
        ("PRINTING", "fail", "BAD"),
        ("PRINTING", "retry", "NEW"),
    ],
)
PAUSE = 3.0


def build_old(setting: Setting) -> App:
    app, outside = App(setting.url, schema=setting.schema), ExternalWork(setting)

    @app.job(kind="press", lifecycle=OLD, lease=setting.lease, backoff=QUICK)
    async def press(run: Run, tag: str, pauses: bool = False) -> str:
        outside.note("old", tag, run.attempt)
        if pauses and run.attempt == 1:
            raise Retry("later", after=PAUSE)
        return tag

    return app


def build_new(setting: Setting) -> App:
    app, outside = App(setting.url, schema=setting.schema), ExternalWork(setting)

    @app.job(kind="press", lifecycle=NEW, lease=setting.lease, backoff=QUICK)
    async def press(run: Run, tag: str, pauses: bool = False) -> str:
        outside.note("new", tag, run.attempt)
        await run.advance("PRINTING")
        return tag

    return app


old = build_old(Setting.of(os.environ))
new = build_new(Setting.of(os.environ))
