"""An HTTP server that echoes its requests, to test that logs contain no secrets."""

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import override

SIGNATURE = "CANARYsignature"


class EchoHandler(BaseHTTPRequestHandler):
    """A server that echoes the request: 200, 404, or no answer, by the end of the path."""

    release: threading.Event

    def do_GET(self) -> None:
        said = json.dumps(
            {
                "ok": False,
                "error_code": 404,
                "description": f"no {self.path} for {self.headers['Authorization']}",
                "result": None,
            }
        )
        if self.path.partition("?")[0].endswith("slow"):
            self.release.wait(60)
            return
        ok = self.path.partition("?")[0].endswith("deleteWebhook")
        body = b'{"ok": true, "result": true}' if ok else said.encode()
        self.send_response(200 if ok else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Link", f"https://downloader.disk.yandex.ru/disk/{SIGNATURE}?filename=CANARY")
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815 - the name that the library requires

    @override
    def log_message(self, format: str, *args: Any) -> None:
        logging.getLogger("aiohttp.access").info(format, *args)


@contextmanager
def run_echo_server() -> Iterator[str]:
    EchoHandler.release = threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), EchoHandler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            EchoHandler.release.set()
            http.shutdown()
            thread.join()
