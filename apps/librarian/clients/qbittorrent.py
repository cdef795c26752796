"""qBittorrent, as much of it as the librarian needs: add a torrent, look at many, remove one.

Calls block; a caller in an event loop hops to a thread. Any number of threads may call at once: each call has a connection to itself.
Nothing here touches qBittorrent's settings. It lives in its own category there, and never deletes what is in another.
"""

import re
from collections import deque
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import sleep
from typing import cast
from urllib.parse import urlsplit

import qbittorrentapi
import requests

from .errors import AddRefused, BadSettings, Banned, CredentialsRefused, LoginRefused, OutsideDown
from .source import Source

CATEGORY = "librarian"
BORN_WITH = ("admin", "adminadmin")

# A torrent that was taken is listed a moment later. These are the waits, in seconds, for one that is not there yet.
SETTLING = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)

info_hash = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

ERROR = frozenset({"error", "missingFiles"})
ACTIVE = frozenset({"downloading", "forcedDL", "metaDL", "forcedMetaDL", "stalledDL", "allocating", "checkingDL"})
COMPLETE = frozenset({"uploading", "forcedUP", "stalledUP", "queuedUP", "pausedUP", "stoppedUP", "checkingUP"})


@dataclass(frozen=True)
class Torrent:
    """One torrent, as qBittorrent sees it now. It may be none of error, active and complete: queued, stopped by somebody, or being moved."""

    id: str
    state: str
    """qBittorrent's own word."""
    progress: float
    """The part of it that is there, 0 to 1."""
    done: float
    """Bytes."""
    total: float | None
    """Bytes; None while nobody knows, as the metadata of a magnet link has not arrived."""
    content_path: str
    save_path: str
    v1: str | None = None
    v2: str | None = None

    @property
    def names(self) -> frozenset[str]:
        """Every id that means this torrent: its own, and its hashes, whole and as qBittorrent shortens them."""
        return frozenset(filter(None, (self.id, self.v1, self.v2, (self.v2 or "")[:40])))

    @property
    def error(self) -> bool:
        """qBittorrent has given up on it."""
        return self.state in ERROR

    @property
    def active(self) -> bool:
        """The download has begun."""
        return self.state in ACTIVE

    @property
    def complete(self) -> bool:
        """All of it is there, in its last place. While qBittorrent moves it to that place, it is not."""
        return self.progress >= 1 and self.state in COMPLETE


class Qbittorrent:
    """A qBittorrent from 4.5 on, over its Web API. A session that ended is begun again, unnoticed.

    Every verb raises OutsideDown while qBittorrent cannot be reached or cannot answer, and LoginRefused while it refuses us.
    """

    def __init__(self, url: str, username: str, password: str, *, allow_default_credentials: bool = False, timeout: float = 20.0) -> None:
        """Nothing is asked of qBittorrent yet. `timeout` is for one request, in seconds; one that failed is tried once more."""
        if not _is_address(url):
            raise BadSettings("qBittorrent's address is http:// or https://, a host and a port, as in http://127.0.0.1:8080, without name or password.")
        if not username or not password:
            raise CredentialsRefused("qBittorrent's user name and password are not set: give both.")
        if (username, password) == BORN_WITH and not allow_default_credentials:
            raise CredentialsRefused("Everybody knows the password that qBittorrent comes with: choose another there, and give it here.")
        self._url, self._username, self._password, self._timeout = url, username, password, timeout
        self._idle: deque[qbittorrentapi.Client] = deque()

    def version(self) -> str:
        """qBittorrent's own version, such as v4.5.2."""
        with self._asking() as client:
            version = client.app_version()
            if not re.match(r"v\d", version):
                raise ValueError(version)
            return version

    def add(self, source: Source, save_path: str) -> str:
        """Have it downloaded into `save_path`, and answer the id by which qBittorrent knows it. One that is there already is as good as added.

        What counts is that a torrent with this info-hash is there, whatever was answered: versions answer a duplicate differently.
        Raises AddRefused if it is not.
        """
        with self._asking() as client:
            refusal = _offer(client, source, save_path)
            for round, pause in enumerate(SETTLING):
                sleep(pause)
                # A hybrid may be there under the other hash, of which a magnet link may say nothing: the first time, all are looked through.
                torrent = _find(client, source) or (_find(client, source, everywhere=True) if refusal and round == 0 else None)
                if torrent:
                    return torrent.id
        if refusal:
            raise AddRefused(f"qBittorrent does not take {source.name or source.id}: {refusal}.")
        raise OutsideDown(f"qBittorrent took {source.name or source.id}, and does not list it yet. See that it runs well.")

    def look(self, ids: Sequence[str]) -> dict[str, Torrent]:
        """Those of `ids` that are there, under the ids as given, by one request.

        An id may be any hash of the torrent. If one was not found as it is, all there are are listed, once, for a hybrid that was renamed: also one that
        somebody else had added before us, and that is in no category of ours.
        """
        wanted = {id: id.lower() for id in ids if info_hash.fullmatch(id.lower())}
        if not wanted:
            return {}
        with self._asking() as client:
            there = _by_name(_torrents(client, hashes=wanted.values()))
            if not there.keys() >= set(wanted.values()):
                there = _by_name(_torrents(client)) | there
        return {id: there[hash] for id, hash in wanted.items() if hash in there}

    def remove(self, id: str) -> None:
        """Remove a torrent and its files, by any of its hashes. One that is gone, or in somebody else's category, is left so."""
        hash = id.lower()
        if not info_hash.fullmatch(hash):
            return
        with self._asking() as client:
            found = _by_name(_torrents(client, hashes=[hash], category=CATEGORY)).get(hash) or _by_name(_torrents(client, category=CATEGORY)).get(hash)
            if found:
                client.torrents_delete(delete_files=True, torrent_hashes=found.id)

    @contextmanager
    def _asking(self) -> Generator[qbittorrentapi.Client]:
        """A connection that is ours alone, and our words for what goes wrong on it. A session is used again by whoever asks next."""
        try:
            client = self._idle.pop()
        except IndexError:
            client = self._connection()
        try:
            yield client
        except qbittorrentapi.Forbidden403Error as banned:
            raise Banned(
                f"qBittorrent at {self._url} lets nobody in from here{_quoted(banned)}. Restart it, or wait until its ban ends, after an hour unless it is set "
                "otherwise."
            ) from banned
        except (qbittorrentapi.LoginFailed, qbittorrentapi.Unauthorized401Error) as refused:
            raise LoginRefused(
                f"qBittorrent at {self._url} refuses the user name {self._username!r} with this password{_quoted(refused)}. "
                "Mend the credentials; it bans an address that fails too often."
            ) from refused
        except qbittorrentapi.APIError as trouble:
            raise OutsideDown(f"qBittorrent at {self._url} {_what_happened(trouble, self._timeout)}") from trouble
        except (KeyError, TypeError, ValueError) as unreadable:
            raise OutsideDown(f"{self._url} does not answer as qBittorrent does: see that this is its address.") from unreadable
        finally:
            self._idle.append(client)

    def _connection(self) -> qbittorrentapi.Client:
        return qbittorrentapi.Client(
            host=self._url,
            username=self._username,
            password=self._password,
            # As an argument of each request, `verify` holds even where the library's environment variable says otherwise. A redirect would carry the password.
            REQUESTS_ARGS={"timeout": self._timeout, "verify": True, "allow_redirects": False},
            FORCE_SCHEME_FROM_HOST=True,
        )


def _is_address(url: str) -> bool:
    try:
        address = urlsplit(url)
        return address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0 and "@" not in address.netloc
    except ValueError:
        return False


def _offer(client: qbittorrentapi.Client, source: Source, save_path: str) -> str | None:
    """Offer a torrent; why it was refused, if it was. Whoever's defaults are in force there, it is to be started, and saved where we say."""
    try:
        answer = client.torrents_add(
            urls=None if source.torrent else source.text,
            torrent_files=source.torrent,
            save_path=save_path,
            category=CATEGORY,
            is_stopped=False,
            use_auto_torrent_management=False,
        )
    except (qbittorrentapi.Conflict409Error, qbittorrentapi.UnsupportedMediaType415Error, qbittorrentapi.HTTP400Error) as refused:
        return f"it answered {refused.http_status_code}{_quoted(refused)}"
    taken = answer == "Ok." if isinstance(answer, str) else answer.get("success_count", 0) or answer.get("pending_count", 0)
    return None if taken else f"it answered {str(answer)[:200]!r}"


def _find(client: qbittorrentapi.Client, source: Source, *, everywhere: bool = False) -> Torrent | None:
    hashes = None if everywhere else [hash for hash in (source.v1, source.v2) if hash]
    for torrent in _torrents(client, hashes=hashes):
        if (source.v1 and torrent.v1 == source.v1) or (source.v2 and torrent.v2 == source.v2):
            return torrent
    return None


def _torrents(client: qbittorrentapi.Client, *, hashes: Iterable[str] | None = None, category: str | None = None) -> list[Torrent]:
    asked = None if hashes is None else list(dict.fromkeys(hash[:40] for hash in hashes))
    rows = cast("list[Mapping[str, object]]", client.torrents_info(torrent_hashes=asked, category=category, SIMPLE_RESPONSES=True))
    return [_torrent(row) for row in rows]


def _torrent(row: Mapping[str, object]) -> Torrent:
    unknown = cast(float, row["total_size"]) < 0
    return Torrent(
        id=str(row["hash"]),
        state=str(row["state"]),
        progress=float(cast(float, row["progress"])),
        done=float(cast(float, row["completed"])),
        total=None if unknown else float(cast(float, row["size"])),
        content_path=str(row["content_path"]),
        save_path=str(row["save_path"]),
        v1=str(row["infohash_v1"]) or None,
        v2=str(row["infohash_v2"]) or None,
    )


def _by_name(torrents: list[Torrent]) -> dict[str, Torrent]:
    """Each torrent under every id that means it. Where two have a claim, it is the one whose own id it is."""
    return {name: torrent for torrent in torrents for name in torrent.names} | {torrent.id: torrent for torrent in torrents}


def _quoted(answer: Exception) -> str:
    said = str(answer).strip()
    return f" ({said[:200]})" if said else ""


def _what_happened(trouble: qbittorrentapi.APIError, timeout: float) -> str:
    cause = trouble.__context__
    if isinstance(trouble, qbittorrentapi.HTTPError):
        if isinstance(trouble, qbittorrentapi.HTTP5XXError):
            return f"cannot answer now: status {trouble.http_status_code}{_quoted(trouble)}. See that it runs well."
        return f"answers with status {trouble.http_status_code}{_quoted(trouble)}: see that this is its address."
    if isinstance(cause, requests.exceptions.SSLError):
        return "shows a certificate that is not to be trusted. Name its authority in REQUESTS_CA_BUNDLE; it is never left unchecked."
    if isinstance(cause, requests.exceptions.Timeout):
        return f"does not answer within {timeout:g} seconds. See that it runs."
    if isinstance(cause, requests.exceptions.ConnectionError):
        return "cannot be reached. See that it runs."
    return "does not answer as qBittorrent does: see that this is its address."
