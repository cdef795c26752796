"""A fake qBittorrent: its Web API v2 over real HTTP on loopback, in three dialects, with controls for failures.

"4.5" answers as qbittorrent-nox 4.5.2 does; a test compares them request by request. "5.0" (to 5.1) and "5.2" (and
later) follow their source code: 5.0 stops torrents that 4.5 pauses, and 5.2 answers with statuses and JSON instead of
"Ok." and "Fails.".

    with FakeQbittorrent("4.5") as qbittorrent:
        client = QbittorrentClient(qbittorrent.url, qbittorrent.username, qbittorrent.password)
        …
        qbittorrent.torrents[id].state = "downloading"
"""

import json
import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Literal, Self

import libtorrent

from .fake_http_server import FakeHttpServer, FakeRequest, FakeResponse

Dialect = Literal["4.5", "5.0", "5.2"]
VERSIONS = {"4.5": ("v4.5.2", "2.8.19"), "5.0": ("v5.0.5", "2.11.2"), "5.2": ("v5.2.3", "2.15.1")}
BAN_AFTER = 5
BANNED = "Your IP address has been banned after too many failed authentication attempts."


@dataclass
class Record:
    """A torrent in the fake. Tests change its fields. `pausedDL` and `stoppedDL` are translated into the dialect."""

    hash: str
    v1: str = ""
    v2: str = ""
    name: str = ""
    state: str = "checkingResumeData"
    progress: float = 0.0
    size: int = 0
    category: str = ""
    save_path: str = ""
    content_path: str = ""
    metadata: bool = True

    def row(self, dialect: Dialect) -> dict[str, object]:
        stopped = {"pausedDL": "stoppedDL", "pausedUP": "stoppedUP"}
        words = {new: old for old, new in stopped.items()} if dialect == "4.5" else stopped
        completed = int(self.size * self.progress)
        row: dict[str, object] = {
            "added_on": 1794797311, "amount_left": self.size - completed, "auto_tmm": False, "availability": -1,
            "category": self.category,
            "completed": completed, "completion_on": 0, "content_path": self.content_path, "dl_limit": 0,
            "dlspeed": 0, "download_path": "",
            "downloaded": completed, "downloaded_session": completed, "eta": 8640000, "f_l_piece_prio": False,
            "force_start": False,
            "hash": self.hash, "infohash_v1": self.v1, "infohash_v2": self.v2, "last_activity": 1794797311,
            "magnet_uri": f"magnet:?xt=urn:btih:{self.v1}", "max_ratio": -1, "max_seeding_time": -1,
            "name": self.name or self.hash,
            "num_complete": 0, "num_incomplete": 0, "num_leechs": 0, "num_seeds": 0, "priority": 1,
            "progress": self.progress, "ratio": 0,
            "ratio_limit": -2, "save_path": self.save_path, "seeding_time": 0, "seeding_time_limit": -2,
            "seen_complete": 0, "seq_dl": False,
            "size": self.size, "state": words.get(self.state, self.state), "super_seeding": False, "tags": "",
            "time_active": 0,
            "total_size": self.size if self.metadata else -1, "tracker": "", "trackers_count": 0, "up_limit": 0,
            "uploaded": 0,
            "uploaded_session": 0, "upspeed": 0,
        }  # fmt: skip
        return (
            row
            if dialect == "4.5"
            else row
            | {"has_metadata": self.metadata, "root_path": "", "private": False, "comment": "", "reannounce": 0}
        )


class FakeQbittorrent:
    """A fake qBittorrent that listens during a `with` block. Tests may use its controls at any time."""

    def __init__(
        self,
        dialect: Dialect = "4.5",
        *,
        username: str = "librarian",
        password: str = "correct horse",
        certificate: Path | None = None,
    ) -> None:
        self.dialect, self.username, self.password = dialect, username, password
        self.torrents: dict[str, Record] = {}
        self.log: list[FakeRequest] = []
        self._sessions: set[str] = set()
        self._failed_logins = 0
        self._gate: threading.Event | None = None
        self._instead: FakeResponse | None = None
        self._refuses = False
        self._certificate = certificate
        self._server: FakeHttpServer | None = None
        self._port = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    @property
    def url(self) -> str:
        return f"{'https' if self._certificate else 'http'}://127.0.0.1:{self._port}"

    # ---------------------------------------------------------------- controls

    def up(self) -> None:
        """Listen again, at the same port."""
        self._server = FakeHttpServer(self.answer, self._port, self._certificate)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def down(self) -> None:
        """Stop listening and cut every connection."""
        if self._server:
            self._server.stop()
            self._server = None

    def expire_sessions(self) -> None:
        """Answer 403 until the client logs in again."""
        with self._lock:
            self._sessions.clear()

    def slow(self, gate: threading.Event) -> None:
        """Delay every response until the event is set."""
        self._gate = gate

    def fail_with(self, status: int | None) -> None:
        """Answer every request with this status. None: answer normally."""
        self.answer_with(FakeResponse(status, "a failure for a test") if status else None)

    def answer_with(self, answer: FakeResponse | None) -> None:
        """Answer every request with this response. None: answer normally."""
        self._instead = answer

    def refuse_adds(self, refuses: bool = True) -> None:
        """Refuse every new torrent."""
        self._refuses = refuses

    def remove(self, id: str) -> Record:
        """Remove a torrent without a request. `torrents[id] = record` puts it back."""
        return self.torrents.pop(id)

    def metadata(self, id: str, *, name: str, size: int, v2: str = "") -> Record:
        """Let the metadata of a magnet link arrive. It renames a hybrid (`v2`)."""
        record = self.torrents.pop(id)
        record.name, record.size, record.metadata, record.v2 = name, size, True, v2 or record.v2
        record.hash = record.v2[:40] or record.v1
        record.content_path = f"{record.save_path}/{name}"
        self.torrents[record.hash] = record
        return record

    def requests_to(self, path: str) -> list[FakeRequest]:
        """The requests to an endpoint, such as torrents/info, including refused ones."""
        return [request for request in self.log if request.path == path]

    # ---------------------------------------------------------------- responses

    def answer(self, request: FakeRequest, cookie: str) -> FakeResponse:
        with self._lock:
            self.log.append(request)
        gate = self._gate
        while gate and self._server and not gate.wait(0.02):
            pass
        with self._lock:
            return self._answer(request, cookie)

    def _answer(self, request: FakeRequest, cookie: str) -> FakeResponse:
        if self._instead:
            return self._instead
        sid = SimpleCookie(cookie).get(self._cookie)
        session = sid.value if sid and sid.value in self._sessions else None
        if request.path == "auth/login":
            return self._login(request, session)
        if session is None:
            return FakeResponse(403, "Forbidden")
        if request.method == "GET" and request.path in (
            "auth/logout",
            "torrents/add",
            "torrents/delete",
            "app/setPreferences",
        ):
            return FakeResponse(405, "Method Not Allowed")
        endpoints: dict[str, Callable[[], FakeResponse]] = {
            "auth/logout": lambda: self._logout(session),
            "app/version": lambda: FakeResponse(body=VERSIONS[self.dialect][0]),
            "app/webapiVersion": lambda: FakeResponse(body=VERSIONS[self.dialect][1]),
            "app/setPreferences": FakeResponse,
            "torrents/info": lambda: self._info(request),
            "torrents/add": lambda: self._add(request),
            "torrents/delete": lambda: self._delete(request),
        }
        return endpoints.get(request.path, lambda: FakeResponse(404, "Not Found"))()

    @property
    def _cookie(self) -> str:
        return f"QBT_SID_{self._port}" if self.dialect == "5.2" else "SID"

    def _login(self, request: FakeRequest, session: str | None) -> FakeResponse:
        ok, fails = (
            (FakeResponse(204), FakeResponse(401, "Unauthorized"))
            if self.dialect == "5.2"
            else (FakeResponse(body="Ok."), FakeResponse(body="Fails."))
        )
        if session:
            return ok
        if self._failed_logins >= BAN_AFTER:
            return FakeResponse(403, BANNED)
        if (request.params.get("username"), request.params.get("password")) != (self.username, self.password):
            self._failed_logins += 1
            return fails
        self._failed_logins = 0
        sid = secrets.token_urlsafe(24)
        self._sessions.add(sid)
        return FakeResponse(ok.status, ok.body, f"{self._cookie}={sid}; HttpOnly; path=/; SameSite=Strict")

    def _logout(self, session: str) -> FakeResponse:
        self._sessions.discard(session)
        return FakeResponse(cookie=f"{self._cookie}=; expires=Sun, 15-Nov-2026 02:48:32 GMT; path=/")

    def _info(self, request: FakeRequest) -> FakeResponse:
        hashes = [hash.lower() for hash in request.params.get("hashes", "").split("|") if hash]
        category = request.params.get("category")
        rows = [
            record.row(self.dialect)
            for record in sorted(self.torrents.values(), key=lambda record: record.name)
            if (not hashes or record.hash in hashes) and (category is None or record.category == category)
        ]
        return FakeResponse(body=json.dumps(rows), json=True)

    def _add(self, request: FakeRequest) -> FakeResponse:
        offered: list[str | None] = []
        for url in filter(None, map(str.strip, request.params.get("urls", "").split("\n"))):
            try:
                offered.append(self._take(request, libtorrent.parse_magnet_uri(url).info_hashes))
            except RuntimeError:
                offered.append(None)
        for name, data in request.files.items():
            try:
                torrent = libtorrent.load_torrent_buffer(data)
            except RuntimeError:
                return FakeResponse(415, f"Error: '{name}' is not a valid torrent file.")
            offered.append(self._take(request, torrent.info_hashes, torrent.ti))
        added = [hash for hash in offered if hash]
        if self.dialect != "5.2":
            return FakeResponse(body="Ok." if added else "Fails.")
        if not added:
            return FakeResponse(409, "Conflict")
        counts = {
            "success_count": len(added),
            "failure_count": len(offered) - len(added),
            "pending_count": 0,
            "added_torrent_ids": added,
        }
        return FakeResponse(body=json.dumps(counts), json=True)

    def _take(
        self, request: FakeRequest, hashes: libtorrent.info_hash_t, described: libtorrent.torrent_info | None = None
    ) -> str | None:
        v1, v2 = (str(hashes.v1) if hashes.has_v1() else ""), (str(hashes.v2) if hashes.has_v2() else "")
        known = any((v1 and record.v1 == v1) or (v2 and record.v2 == v2) for record in self.torrents.values())
        if known or self._refuses:
            return None
        save_path = request.params.get("savepath", "/downloads")
        record = Record(
            v2[:40] or v1,
            v1,
            v2,
            save_path=save_path,
            category=request.params.get("category", ""),
            metadata=described is not None,
        )
        if described:
            record.name, record.size, record.content_path = (
                described.name(),
                described.total_size(),
                f"{save_path}/{described.name()}",
            )
        self.torrents[record.hash] = record
        return record.hash

    def _delete(self, request: FakeRequest) -> FakeResponse:
        if not {"hashes", "deleteFiles"} <= request.params.keys():
            return FakeResponse(400, "Bad Request")
        hashes = request.params["hashes"].lower().split("|")
        for hash in list(self.torrents):
            if hash in hashes or hashes == ["all"]:
                del self.torrents[hash]
        return FakeResponse()
