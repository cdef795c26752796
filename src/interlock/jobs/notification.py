"""Notification: every end of a job may tell the outside, by a job of its own that is stored in the transaction of that end."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .errors import UsageError
from .job import Job
from .kind import Kind
from .payload import check_name
from .run import SyncRun
from .webhook import Webhook, headers, message, send

KIND = "webhook"
"""The kind of the jobs that notify. They notify nobody."""
TIMEOUT = 15.0


class Notices:
    """Which kinds tell whom."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._hooks: dict[str, tuple[Webhook, frozenset[str] | None]] = {}
        self._now = now

    def add(self, name: str, hook: Webhook, kinds: Iterable[str] | None) -> None:
        check_name("The name of a webhook", name)
        if name in self._hooks:
            raise UsageError(f"This app has a webhook {name} already: give one of the two another name.")
        self._hooks[name] = hook, None if kinds is None else frozenset(kinds)

    def of(self, kind: str) -> list[str]:
        """The webhooks that hear of this kind."""
        return [name for name, (_, kinds) in self._hooks.items() if kind != KIND and (kinds is None or kind in kinds)]

    def teller(self, kinds: Mapping[str, Kind[..., Any, Any]]) -> Callable[[Any, Job], None]:
        """What runs in the transaction of a job's end: it stores the jobs that tell of it."""

        def tell(tx: Any, job: Job) -> None:
            for name in self.of(job.kind):
                kinds[KIND].using(conn=tx, idempotency_key=f"{name}:{job.id}").enqueue(hook=name, id=f"msg_{job.id}", body=json.dumps(message(job)))

        return tell

    def deliver(self, run: SyncRun, hook: str, id: str, body: str) -> int:
        """Send one message, signed now: the handler of the jobs that notify."""
        del run
        if hook not in self._hooks:
            raise UsageError(f"No webhook {hook!r} is declared any more: declare it, or cancel what waits for it.")
        to, text = self._hooks[hook][0], body.encode()
        return send(to.url, text, headers(to.secret, id, int(self._now()), text), timeout=TIMEOUT, allow_private=to.allow_private)
