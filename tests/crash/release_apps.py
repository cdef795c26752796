"""Two releases of one program, `tests.crash.releases:old` and `tests.crash.releases:new`: the same names, another lifecycle."""

import os

from interlock import App, Lifecycle, Run
from interlock.answers import Retry
from tests.crash.program import QUICK, Outside, Setting

_COMMON = [("NEW", "claim", "BUSY"), ("BUSY", "succeed", "OK"), ("BUSY", "fail", "BAD")]
OLD = Lifecycle("press", transitions=[*_COMMON, ("BUSY", "retry", "PAUSED"), ("PAUSED", "claim", "BUSY")])
NEW = Lifecycle("press", transitions=[*_COMMON, ("BUSY", "retry", "NEW"), ("BUSY", "advance", "PRINTING"), ("PRINTING", "succeed", "OK"),
                                      ("PRINTING", "fail", "BAD"), ("PRINTING", "retry", "NEW")])
PAUSE = 3.0


def build_old(setting: Setting) -> App:
    app, outside = App(setting.url, schema=setting.schema), Outside(setting)

    @app.job(kind="press", lifecycle=OLD, lease=setting.lease, backoff=QUICK)
    async def press(run: Run, tag: str, pauses: bool = False) -> str:
        outside.note("old", tag, run.attempt)
        if pauses and run.attempt == 1:
            raise Retry("later", after=PAUSE)
        return tag

    return app


def build_new(setting: Setting) -> App:
    app, outside = App(setting.url, schema=setting.schema), Outside(setting)

    @app.job(kind="press", lifecycle=NEW, lease=setting.lease, backoff=QUICK)
    async def press(run: Run, tag: str, pauses: bool = False) -> str:
        outside.note("new", tag, run.attempt)
        await run.advance("PRINTING")
        return tag

    return app


old = build_old(Setting.of(os.environ))
new = build_new(Setting.of(os.environ))
