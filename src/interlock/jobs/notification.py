"""The webhooks of an app. The transaction that ends a job also enqueues a message to each of them."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..core.job import Job
from ..core.payload import check_name
from ..errors import UsageError
from .kind import Kind
from .webhook import Webhook, headers, message, send

KIND = "webhook"
"""The kind of the jobs that send messages. Their own ends send none."""
TIMEOUT = 15.0


class Webhooks:
    """The webhooks of an app, each with the kinds whose jobs it reports."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._webhooks: dict[str, tuple[Webhook, frozenset[str] | None]] = {}
        self._now = now

    def add(self, name: str, webhook: Webhook, kinds: Iterable[str] | None) -> None:
        """Register a webhook for these kinds; None means all."""
        check_name("The name of a webhook", name)
        if name in self._webhooks:
            raise UsageError(f"This app already has a webhook {name}: give one of the two another name.")
        self._webhooks[name] = webhook, None if kinds is None else frozenset(kinds)

    def names_for(self, kind: str) -> list[str]:
        """Return the names of the webhooks that report jobs of this kind."""
        return [
            name for name, (_, kinds) in self._webhooks.items() if kind != KIND and (kinds is None or kind in kinds)
        ]

    def hook(self, kinds: Mapping[str, Kind[..., Any, Any]]) -> Callable[[Any, Job], None]:
        """Return the hook that enqueues the messages about a job, in the transaction of its end."""

        def enqueue_messages(tx: Any, job: Job) -> None:
            for name in self.names_for(job.kind):
                kinds[KIND].using(conn=tx, idempotency_key=f"{name}:{job.id}").enqueue(
                    hook=name, id=f"msg_{job.id}", body=json.dumps(message(job))
                )

        return enqueue_messages

    def deliver(self, hook: str, id: str, body: str) -> int:
        """Sign and send one message: the handler of the webhook jobs."""
        if hook not in self._webhooks:
            raise UsageError(
                f"This app no longer declares the webhook {hook!r}: declare it, or cancel its waiting jobs."
            )
        webhook, text = self._webhooks[hook][0], body.encode()
        return send(
            webhook.url,
            text,
            headers(webhook.secret, id, int(self._now()), text),
            timeout=TIMEOUT,
            allow_private=webhook.allow_private,
        )
