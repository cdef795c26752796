"""Notifications: the end of a job and its notification job are stored in one transaction."""

import base64
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from interlock import App, Fail, Run, Tx
from interlock.errors import UsageError
from interlock.jobs.webhook import verify
from tests.kit import Place

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
Heard = list[tuple[dict[str, str], bytes]]


@contextmanager
def receiver(*answers: int) -> Iterator[tuple[str, Heard]]:
    """Serve an address that answers with these statuses, repeats the last one, and records the requests."""
    heard: Heard = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append((dict(self.headers.items()), self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(answers[min(len(heard), len(answers)) - 1])
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hooks", heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def app_on(place: Place, url: str, **chosen: object) -> App[Tx]:
    app: App[Tx] = App(place.url, schema=place.schema)

    @app.job()
    async def good(run: Run, n: int) -> int:
        return n

    @app.job()
    async def bad(run: Run, n: int) -> int:
        raise Fail("as told")

    app.webhook("billing", url, secret=SECRET, allow_private=True, **chosen)  # type: ignore[arg-type]
    app.migrate()
    return app


def test_each_job_end_sends_one_signed_message(place: Place) -> None:
    with receiver(200) as (url, heard):
        app = app_on(place, url)
        ids = {
            app.enqueue_named("good", {"n": 1}).id: "job.succeeded",
            app.enqueue_named("bad", {"n": 1}).id: "job.failed",
        }
        app.run_until_idle()
    told = {json.loads(body)["data"]["id"]: json.loads(body)["type"] for _, body in heard}
    assert told == ids
    assert len(heard) == 2
    for headers, body in heard:
        assert verify(SECRET, headers, body, now=int({k.lower(): v for k, v in headers.items()}["webhook-timestamp"]))
        assert not verify(
            SECRET, headers, body + b" ", now=int({k.lower(): v for k, v in headers.items()}["webhook-timestamp"])
        )
    assert app.verify().ok


def test_rule_36_notification_jobs_send_no_notification(place: Place) -> None:
    with receiver(200) as (url, heard):
        app = app_on(place, url)
        app.enqueue_named("good", {"n": 1})
        app.run_until_idle()
    assert len(heard) == 1
    assert [job.state for job in app.jobs(kind="webhook")] == ["SUCCEEDED"]


def test_webhook_is_notified_only_of_its_kinds(place: Place) -> None:
    with receiver(200) as (url, heard):
        app = app_on(place, url, kinds=["bad"])
        app.enqueue_named("good", {"n": 1})
        app.enqueue_named("bad", {"n": 1})
        app.run_until_idle()
    assert [json.loads(body)["data"]["kind"] for _, body in heard] == ["bad"]


def test_cancelled_waiting_job_is_notified(place: Place) -> None:
    with receiver(200) as (url, heard):
        app = app_on(place, url)
        app.cancel(app.enqueue_named("good", {"n": 1}).id, by="anna")
        app.run_until_idle()
    assert [json.loads(body)["data"]["state"] for _, body in heard] == ["CANCELLED"]


def test_refused_message_waits_for_a_retry(place: Place) -> None:
    with receiver(503, 200) as (url, heard):
        app = app_on(place, url)
        app.enqueue_named("good", {"n": 1})
        app.run_until_idle()
        job = app.jobs(kind="webhook")[0]
        # The backoff is random, so a slow run may include the retry.
        assert [entry.event for entry in app.history(job.id)][:3] == ["enqueue", "claim", "retry"]
        assert job.tries_left == 11
    assert 1 <= len(heard) <= 2


def test_stored_message_contains_no_secret_and_no_payload(place: Place) -> None:
    with receiver(200) as (url, _):
        app = app_on(place, url)
        app.enqueue_named("good", {"n": 424242})
        app.run_until_idle()
        stored = json.dumps(dict(app.jobs(kind="webhook")[0].payload))
    assert SECRET not in stored
    assert "424242" not in stored


def test_private_address_is_refused_unless_allowed(place: Place) -> None:
    app: App[Tx] = App(place.url, schema=place.schema)
    with pytest.raises(UsageError, match="not public"):
        app.webhook("inner", "http://127.0.0.1:1/x", secret=SECRET)
    assert "webhook" not in app.kinds
