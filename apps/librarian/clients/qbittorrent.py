"""A client of qBittorrent's Web API that adds, finds and removes torrents.

Calls block. Any number of threads may call at once, because each call has its own connection. The client never changes
qBittorrent's settings. It uses a category of its own, and deletes no torrent of another category.
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

from ..errors import AddRefused, BadSettings, Banned, LoginRefused, QbittorrentUnavailable, UnsafeCredentials
from ..torrent_source import Source

CATEGORY = "librarian"
DEFAULT_CREDENTIALS = ("admin", "adminadmin")

# qBittorrent lists a new torrent with a delay. These are the waits in seconds between the checks for it.
LISTING_WAITS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8)

INFO_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

ERROR_STATES = frozenset({"error", "missingFiles"})
ACTIVE_STATES = frozenset(
    {"downloading", "forcedDL", "metaDL", "forcedMetaDL", "stalledDL", "allocating", "checkingDL"}
)
COMPLETE_STATES = frozenset({"uploading", "forcedUP", "stalledUP", "queuedUP", "pausedUP", "stoppedUP", "checkingUP"})


@dataclass(frozen=True)
class Torrent:
    """The current state of a torrent in qBittorrent.

    It may be none of error, active and complete, for example if it is queued, stopped or being moved.
    """

    id: str
    state: str
    """qBittorrent's name of the state."""
    progress: float
    """The finished part, from 0 to 1."""
    done: float
    """Finished bytes."""
    total: float | None
    """The size in bytes. None until the metadata of a magnet link arrives."""
    content_path: str
    save_path: str
    v1: str | None = None
    v2: str | None = None

    @property
    def ids(self) -> frozenset[str]:
        """Every id of this torrent: qBittorrent's own, and its hashes in full and shortened to 40 digits."""
        return frozenset(filter(None, (self.id, self.v1, self.v2, (self.v2 or "")[:40])))

    @property
    def error(self) -> bool:
        """qBittorrent reports an error."""
        return self.state in ERROR_STATES

    @property
    def active(self) -> bool:
        """The download has started."""
        return self.state in ACTIVE_STATES

    @property
    def complete(self) -> bool:
        """All data is there, and in its final place: qBittorrent is not moving it any more."""
        return self.progress >= 1 and self.state in COMPLETE_STATES


class QbittorrentClient:
    """A client for qBittorrent 4.5 and later. It logs in again when its session expires.

    Every method may raise QbittorrentUnavailable or LoginRefused.
    """

    def __init__(
        self, url: str, username: str, password: str, *, allow_default_credentials: bool = False, timeout: float = 20.0
    ) -> None:
        """Make a client without connecting. `timeout` is in seconds per request; a failed request is retried once."""
        if not _is_valid_url(url):
            raise BadSettings(
                "LIBRARIAN_QBITTORRENT_URL is not valid. Write http:// or https://, a host and a port, without a user "
                "name or password, for example http://127.0.0.1:8080."
            )
        if not username or not password:
            raise UnsafeCredentials("The user name and password for qBittorrent are not set. Set both.")
        if (username, password) == DEFAULT_CREDENTIALS and not allow_default_credentials:
            raise UnsafeCredentials(
                "These are qBittorrent's default credentials, which everybody knows. Choose a password in qBittorrent."
            )
        self._url, self._username, self._password, self._timeout = url, username, password, timeout
        self._idle: deque[qbittorrentapi.Client] = deque()

    def version(self) -> str:
        """The version of qBittorrent, such as v4.5.2."""
        with self._connection() as client:
            version = client.app_version()
            if not re.match(r"v\d", version):
                raise ValueError(version)
            return version

    def add(self, source: Source, save_path: str) -> str:
        """Add a torrent that is saved to `save_path`, and return its id in qBittorrent.

        Adding an existing torrent succeeds. Versions of qBittorrent answer a duplicate differently, so the method
        looks for the info-hash afterwards, and raises AddRefused only if it is missing.
        """
        with self._connection() as client:
            refusal = _submit(client, source, save_path)
            for check, pause in enumerate(LISTING_WAITS):
                sleep(pause)
                # A hybrid may be listed under a hash that the magnet link does not have: search all torrents once.
                torrent = _find(client, source) or (
                    _find(client, source, everywhere=True) if refusal and check == 0 else None
                )
                if torrent:
                    return torrent.id
        if refusal:
            raise AddRefused(f"qBittorrent refuses {source.name or source.id}: {refusal}.")
        raise QbittorrentUnavailable(
            f"qBittorrent accepted {source.name or source.id} but does not list it yet. Check that it works properly."
        )

    def find_torrents(self, ids: Sequence[str]) -> dict[str, Torrent]:
        """The torrents with these ids, which may be any of their hashes. Missing ones are left out.

        One request, and a second one that lists all torrents if an id is missing: qBittorrent renames a hybrid when
        its metadata arrives, and it may be in another category.
        """
        wanted = {id: id.lower() for id in ids if INFO_HASH.fullmatch(id.lower())}
        if not wanted:
            return {}
        with self._connection() as client:
            found = _by_id(_torrents(client, hashes=wanted.values()))
            if not found.keys() >= set(wanted.values()):
                found = _by_id(_torrents(client)) | found
        return {id: found[hash] for id, hash in wanted.items() if hash in found}

    def remove(self, id: str) -> None:
        """Delete a torrent and its files by any of its hashes, unless it is missing or in another category."""
        hash = id.lower()
        if not INFO_HASH.fullmatch(hash):
            return
        with self._connection() as client:
            found = _by_id(_torrents(client, hashes=[hash], category=CATEGORY)).get(hash) or _by_id(
                _torrents(client, category=CATEGORY)
            ).get(hash)
            if found:
                client.torrents_delete(delete_files=True, torrent_hashes=found.id)

    @contextmanager
    def _connection(self) -> Generator[qbittorrentapi.Client]:
        """A connection for one call, which goes back to the pool. Translates its errors into those of the librarian."""
        try:
            client = self._idle.pop()
        except IndexError:
            client = self._connect()
        try:
            yield client
        except qbittorrentapi.Forbidden403Error as error:
            raise Banned(
                f"qBittorrent at {self._url} has banned this address{_quote(error)}. "
                "Restart it, or wait until the ban ends, by default after an hour."
            ) from error
        except (qbittorrentapi.LoginFailed, qbittorrentapi.Unauthorized401Error) as error:
            raise LoginRefused(
                f"qBittorrent at {self._url} rejects the password of user {self._username!r}{_quote(error)}. "
                "Correct the credentials: qBittorrent bans an address after too many failed logins."
            ) from error
        except qbittorrentapi.APIError as error:
            raise QbittorrentUnavailable(
                f"qBittorrent at {self._url} {_describe_failure(error, self._timeout)}"
            ) from error
        except (KeyError, TypeError, ValueError) as error:
            raise QbittorrentUnavailable(
                f"{self._url} does not answer like qBittorrent. Check LIBRARIAN_QBITTORRENT_URL."
            ) from error
        finally:
            self._idle.append(client)

    def _connect(self) -> qbittorrentapi.Client:
        return qbittorrentapi.Client(
            host=self._url,
            username=self._username,
            password=self._password,
            # `verify` per request overrides the environment variable of the library.
            # A redirect could send the password elsewhere.
            REQUESTS_ARGS={"timeout": self._timeout, "verify": True, "allow_redirects": False},
            FORCE_SCHEME_FROM_HOST=True,
        )


def _is_valid_url(url: str) -> bool:
    try:
        address = urlsplit(url)
        return (
            address.scheme in ("http", "https")
            and bool(address.hostname)
            and address.port != 0
            and "@" not in address.netloc
        )
    except ValueError:
        return False


def _submit(client: qbittorrentapi.Client, source: Source, save_path: str) -> str | None:
    """Submit a torrent, and return the reason if qBittorrent refuses it. Overrides qBittorrent's own defaults."""
    try:
        answer = client.torrents_add(
            urls=None if source.torrent else source.text,
            torrent_files=source.torrent,
            save_path=save_path,
            category=CATEGORY,
            is_stopped=False,
            use_auto_torrent_management=False,
        )
    except (
        qbittorrentapi.Conflict409Error,
        qbittorrentapi.UnsupportedMediaType415Error,
        qbittorrentapi.HTTP400Error,
    ) as error:
        return f"it answered {error.http_status_code}{_quote(error)}"
    accepted = (
        answer == "Ok." if isinstance(answer, str) else answer.get("success_count", 0) or answer.get("pending_count", 0)
    )
    return None if accepted else f"it answered {str(answer)[:200]!r}"


def _find(client: qbittorrentapi.Client, source: Source, *, everywhere: bool = False) -> Torrent | None:
    hashes = None if everywhere else [hash for hash in (source.v1, source.v2) if hash]
    for torrent in _torrents(client, hashes=hashes):
        if (source.v1 and torrent.v1 == source.v1) or (source.v2 and torrent.v2 == source.v2):
            return torrent
    return None


def _torrents(
    client: qbittorrentapi.Client, *, hashes: Iterable[str] | None = None, category: str | None = None
) -> list[Torrent]:
    short_hashes = None if hashes is None else list(dict.fromkeys(hash[:40] for hash in hashes))
    rows = cast(
        "list[Mapping[str, object]]",
        client.torrents_info(torrent_hashes=short_hashes, category=category, SIMPLE_RESPONSES=True),
    )
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


def _by_id(torrents: list[Torrent]) -> dict[str, Torrent]:
    """Each torrent under all its ids. qBittorrent's own id of a torrent wins over another torrent's hash."""
    return {id: torrent for torrent in torrents for id in torrent.ids} | {torrent.id: torrent for torrent in torrents}


def _quote(answer: Exception) -> str:
    text = str(answer).strip()
    return f" ({text[:200]})" if text else ""


def _describe_failure(error: qbittorrentapi.APIError, timeout: float) -> str:
    cause = error.__context__
    if isinstance(error, qbittorrentapi.HTTPError):
        if isinstance(error, qbittorrentapi.HTTP5XXError):
            return f"cannot answer now: status {error.http_status_code}{_quote(error)}. Check that it works properly."
        return f"answers with status {error.http_status_code}{_quote(error)}. Check LIBRARIAN_QBITTORRENT_URL."
    if isinstance(cause, requests.exceptions.SSLError):
        return "has an untrusted certificate. Set REQUESTS_CA_BUNDLE to the file of its certificate authority."
    if isinstance(cause, requests.exceptions.Timeout):
        return f"does not answer within {timeout:g} seconds. Check that it is running."
    if isinstance(cause, requests.exceptions.ConnectionError):
        return "is unreachable. Check that it is running."
    return "does not answer like qBittorrent. Check LIBRARIAN_QBITTORRENT_URL."
