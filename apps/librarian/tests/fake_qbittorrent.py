"""A qBittorrent for tests: its Web API v2 over real HTTP on loopback, in three dialects, with everything that can go wrong at hand.

"4.5" is what qbittorrent-nox 4.5.2 was seen to answer, request by request; "5.0" (to 5.1) and "5.2" (and later) are what their sources say:
5.0 stops torrents where 4.5 paused them, 5.2 answers statuses and JSON where the others say "Ok." and "Fails.".

    with FakeQbittorrent("4.5") as qbittorrent:
        client = Qbittorrent(qbittorrent.url, qbittorrent.username, qbittorrent.password)
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

from .loopback import Answer, Asked, Server

Dialect = Literal["4.5", "5.0", "5.2"]
VERSIONS = {"4.5": ("v4.5.2", "2.8.19"), "5.0": ("v5.0.5", "2.11.2"), "5.2": ("v5.2.3", "2.15.1")}
BAN_AFTER = 5
BANNED = "Your IP address has been banned after too many failed authentication attempts."


@dataclass
class Record:
    """One torrent in the fake. A test writes to it what it wants to be seen; `pausedDL` and `stoppedDL` are told in the dialect's own word."""

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
            "added_on": 1794797311, "amount_left": self.size - completed, "auto_tmm": False, "availability": -1, "category": self.category,
            "completed": completed, "completion_on": 0, "content_path": self.content_path, "dl_limit": 0, "dlspeed": 0, "download_path": "",
            "downloaded": completed, "downloaded_session": completed, "eta": 8640000, "f_l_piece_prio": False, "force_start": False,
            "hash": self.hash, "infohash_v1": self.v1, "infohash_v2": self.v2, "last_activity": 1794797311,
            "magnet_uri": f"magnet:?xt=urn:btih:{self.v1}", "max_ratio": -1, "max_seeding_time": -1, "name": self.name or self.hash,
            "num_complete": 0, "num_incomplete": 0, "num_leechs": 0, "num_seeds": 0, "priority": 1, "progress": self.progress, "ratio": 0,
            "ratio_limit": -2, "save_path": self.save_path, "seeding_time": 0, "seeding_time_limit": -2, "seen_complete": 0, "seq_dl": False,
            "size": self.size, "state": words.get(self.state, self.state), "super_seeding": False, "tags": "", "time_active": 0,
            "total_size": self.size if self.metadata else -1, "tracker": "", "trackers_count": 0, "up_limit": 0, "uploaded": 0,
            "uploaded_session": 0, "upspeed": 0,
        }  # fmt: skip
        return row if dialect == "4.5" else row | {"has_metadata": self.metadata, "root_path": "", "private": False, "comment": "", "reannounce": 0}


class FakeQbittorrent:
    """Answers from the moment it is entered until it is left. Every control may be used at any time, from the test's own thread."""

    def __init__(self, dialect: Dialect = "4.5", *, username: str = "librarian", password: str = "correct horse", certificate: Path | None = None) -> None:
        self.dialect, self.username, self.password = dialect, username, password
        self.torrents: dict[str, Record] = {}
        self.log: list[Asked] = []
        self._sessions: set[str] = set()
        self._failed_logins = 0
        self._gate: threading.Event | None = None
        self._instead: Answer | None = None
        self._refuses = False
        self._certificate = certificate
        self._server: Server | None = None
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
        """Listen again, at the port it had."""
        self._server = Server(self.answer, self._port, self._certificate)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def down(self) -> None:
        """Stop listening and cut every connection: the next is refused."""
        if self._server:
            self._server.end()
            self._server = None

    def expire_sessions(self) -> None:
        """Answer 403 until the client logs in again."""
        with self._lock:
            self._sessions.clear()

    def slow(self, gate: threading.Event) -> None:
        """Hold every answer back until the event is set."""
        self._gate = gate

    def fail_with(self, status: int | None) -> None:
        """Answer everything with this status; None: as it should."""
        self.answer_with(Answer(status, "it was told to fail") if status else None)

    def answer_with(self, answer: Answer | None) -> None:
        """Answer everything with this; None: as it should."""
        self._instead = answer

    def refuse_adds(self, refuses: bool = True) -> None:
        """Take no torrent, whatever the reason."""
        self._refuses = refuses

    def remove(self, id: str) -> Record:
        """Take a torrent away behind everybody's back; put it back with `torrents[id] = record`."""
        return self.torrents.pop(id)

    def metadata(self, id: str, *, name: str, size: int, v2: str = "") -> Record:
        """Let the metadata of a magnet link arrive. A hybrid (`v2`) is renamed by it."""
        record = self.torrents.pop(id)
        record.name, record.size, record.metadata, record.v2 = name, size, True, v2 or record.v2
        record.hash = record.v2[:40] or record.v1
        record.content_path = f"{record.save_path}/{name}"
        self.torrents[record.hash] = record
        return record

    def asked(self, path: str) -> list[Asked]:
        """The requests that arrived for one endpoint, such as torrents/info, the refused ones too."""
        return [asked for asked in self.log if asked.path == path]

    # ---------------------------------------------------------------- answers

    def answer(self, asked: Asked, cookie: str) -> Answer:
        with self._lock:
            self.log.append(asked)
        gate = self._gate
        while gate and self._server and not gate.wait(0.02):
            pass
        with self._lock:
            return self._answer(asked, cookie)

    def _answer(self, asked: Asked, cookie: str) -> Answer:
        if self._instead:
            return self._instead
        sid = SimpleCookie(cookie).get(self._cookie)
        session = sid.value if sid and sid.value in self._sessions else None
        if asked.path == "auth/login":
            return self._login(asked, session)
        if session is None:
            return Answer(403, "Forbidden")
        if asked.method == "GET" and asked.path in ("auth/logout", "torrents/add", "torrents/delete", "app/setPreferences"):
            return Answer(405, "Method Not Allowed")
        endpoints: dict[str, Callable[[], Answer]] = {
            "auth/logout": lambda: self._logout(session),
            "app/version": lambda: Answer(body=VERSIONS[self.dialect][0]),
            "app/webapiVersion": lambda: Answer(body=VERSIONS[self.dialect][1]),
            "app/setPreferences": Answer,
            "torrents/info": lambda: self._info(asked),
            "torrents/add": lambda: self._add(asked),
            "torrents/delete": lambda: self._delete(asked),
        }
        return endpoints.get(asked.path, lambda: Answer(404, "Not Found"))()

    @property
    def _cookie(self) -> str:
        return f"QBT_SID_{self._port}" if self.dialect == "5.2" else "SID"

    def _login(self, asked: Asked, session: str | None) -> Answer:
        ok, fails = (Answer(204), Answer(401, "Unauthorized")) if self.dialect == "5.2" else (Answer(body="Ok."), Answer(body="Fails."))
        if session:
            return ok
        if self._failed_logins >= BAN_AFTER:
            return Answer(403, BANNED)
        if (asked.params.get("username"), asked.params.get("password")) != (self.username, self.password):
            self._failed_logins += 1
            return fails
        self._failed_logins = 0
        sid = secrets.token_urlsafe(24)
        self._sessions.add(sid)
        return Answer(ok.status, ok.body, f"{self._cookie}={sid}; HttpOnly; path=/; SameSite=Strict")

    def _logout(self, session: str) -> Answer:
        self._sessions.discard(session)
        return Answer(cookie=f"{self._cookie}=; expires=Sun, 15-Nov-2026 02:48:32 GMT; path=/")

    def _info(self, asked: Asked) -> Answer:
        hashes = [hash.lower() for hash in asked.params.get("hashes", "").split("|") if hash]
        category = asked.params.get("category")
        rows = [
            record.row(self.dialect)
            for record in sorted(self.torrents.values(), key=lambda record: record.name)
            if (not hashes or record.hash in hashes) and (category is None or record.category == category)
        ]
        return Answer(body=json.dumps(rows), json=True)

    def _add(self, asked: Asked) -> Answer:
        offered: list[str | None] = []
        for url in filter(None, map(str.strip, asked.params.get("urls", "").split("\n"))):
            try:
                offered.append(self._take(asked, libtorrent.parse_magnet_uri(url).info_hashes))
            except RuntimeError:
                offered.append(None)
        for name, data in asked.files.items():
            try:
                torrent = libtorrent.load_torrent_buffer(data)
            except RuntimeError:
                return Answer(415, f"Error: '{name}' is not a valid torrent file.")
            offered.append(self._take(asked, torrent.info_hashes, torrent.ti))
        added = [hash for hash in offered if hash]
        if self.dialect != "5.2":
            return Answer(body="Ok." if added else "Fails.")
        if not added:
            return Answer(409, "Conflict")
        counts = {"success_count": len(added), "failure_count": len(offered) - len(added), "pending_count": 0, "added_torrent_ids": added}
        return Answer(body=json.dumps(counts), json=True)

    def _take(self, asked: Asked, hashes: libtorrent.info_hash_t, described: libtorrent.torrent_info | None = None) -> str | None:
        v1, v2 = (str(hashes.v1) if hashes.has_v1() else ""), (str(hashes.v2) if hashes.has_v2() else "")
        there = any((v1 and record.v1 == v1) or (v2 and record.v2 == v2) for record in self.torrents.values())
        if there or self._refuses:
            return None
        save_path = asked.params.get("savepath", "/downloads")
        record = Record(v2[:40] or v1, v1, v2, save_path=save_path, category=asked.params.get("category", ""), metadata=described is not None)
        if described:
            record.name, record.size, record.content_path = described.name(), described.total_size(), f"{save_path}/{described.name()}"
        self.torrents[record.hash] = record
        return record.hash

    def _delete(self, asked: Asked) -> Answer:
        if not {"hashes", "deleteFiles"} <= asked.params.keys():
            return Answer(400, "Bad Request")
        hashes = asked.params["hashes"].lower().split("|")
        for hash in list(self.torrents):
            if hash in hashes or hashes == ["all"]:
                del self.torrents[hash]
        return Answer()
