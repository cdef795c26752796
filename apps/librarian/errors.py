"""The errors of the librarian. Each message says what happened and what to do next.

LibrarianError
├── BadSource               the source is not a magnet link or .torrent file that may be downloaded
├── UnsafeCredentials       the credentials are missing, or are qBittorrent's default ones
├── LoginRefused            qBittorrent rejects the user name and password
│   └── Banned              qBittorrent bans this address after too many failed logins
├── QbittorrentUnavailable  qBittorrent is unreachable or cannot answer now
├── AddRefused              qBittorrent rejects the torrent
├── BadSettings             an environment variable has an invalid value
├── BadName                 a user name, book title or author is invalid
├── UnknownMedia            the media type is not text or audio
├── NotFound                there is no such user, book or download, or it belongs to another user
├── Conflict                the request contradicts the current state
├── CommandError            a command has wrong arguments
└── NotMigrated             the database has no tables of the librarian
"""


class LibrarianError(Exception):
    """Base class of the librarian's errors."""


class BadSource(LibrarianError):
    """The source can never be downloaded. Nothing was stored, and qBittorrent was not called."""


class UnsafeCredentials(LibrarianError):
    """The credentials are missing, or are qBittorrent's default ones. No request was made."""


class LoginRefused(LibrarianError):
    """qBittorrent rejects the user name and password."""

    retry_after = 60.0
    """Seconds until the next try. Interlock reads it: five failed logins within seconds would cause a ban."""


class Banned(LoginRefused):
    """qBittorrent refuses every login from this address for a while."""


class QbittorrentUnavailable(LibrarianError):
    """qBittorrent is unreachable, too slow, or cannot answer now. The state of its torrents is unknown."""


class AddRefused(LibrarianError):
    """qBittorrent answered the request, but did not add the torrent."""


class BadSettings(LibrarianError):
    """A setting has an invalid value. No connection was opened."""


class BadName(LibrarianError):
    """A name is empty, too long, or has invisible characters. Nothing was stored."""


class UnknownMedia(LibrarianError):
    """The media type is not text or audio. Nothing was stored."""


class NotFound(LibrarianError):
    """The object does not exist or belongs to another user; the error does not say which. Nothing changed."""


class Conflict(LibrarianError):
    """The request contradicts the current state. Nothing changed."""


class CommandError(LibrarianError):
    """A command has wrong arguments. Nothing changed."""


class NotMigrated(LibrarianError):
    """The database has no tables of the librarian. Nothing was created."""
