"""What the librarian raises, each with one sentence that says what happened and what to do.

LibrarianError
├── BadSource            neither a magnet link nor a .torrent that may be downloaded
├── CredentialsRefused   no password was given, or qBittorrent's default one, and nobody said that this is meant
├── LoginRefused         qBittorrent does not know this user name and password
│   └── Banned           it listens to nobody from here for a while, since too many logins failed
├── OutsideDown          qBittorrent cannot be reached or cannot answer now
├── AddRefused           qBittorrent does not take this torrent
├── BadSettings          a setting in the environment cannot be used
├── BadName              a user's name, or a book's title or author, cannot be kept
├── UnknownMedia         a book has a text and an audio medium, and no other
├── NotFound             there is no such user, book or download for whoever asks
└── Conflict             the download has ended, another one is in its place, or the name is somebody else's
"""


class LibrarianError(Exception):
    """Everything that the librarian itself raises."""


class BadSource(LibrarianError):
    """What was given can never be downloaded. Nothing was stored, and qBittorrent was not asked."""


class CredentialsRefused(LibrarianError):
    """There are no credentials, or the ones that every qBittorrent is born with. No request was made."""


class LoginRefused(LibrarianError):
    """qBittorrent answers, and refuses the user name and password."""

    retry_after = 60.0
    """Seconds. The engine reads it: five logins that fail within seconds would ban us."""


class Banned(LoginRefused):
    """qBittorrent refuses everybody at our address for a while, whatever their password."""


class OutsideDown(LibrarianError):
    """qBittorrent cannot be reached, is too slow, or cannot answer now. It says nothing about any torrent."""


class AddRefused(LibrarianError):
    """qBittorrent took the request, and the torrent is not there."""


class BadSettings(LibrarianError):
    """A setting cannot be used. Nothing was opened."""


class BadName(LibrarianError):
    """A name is empty, too long, or has characters that nobody can see. Nothing was stored."""


class UnknownMedia(LibrarianError):
    """The medium is neither text nor audio. Nothing was stored."""


class NotFound(LibrarianError):
    """There is none, or it is not theirs who ask: the two are told apart by nobody. Nothing was changed."""


class Conflict(LibrarianError):
    """What is asked does not go with how things are now. Nothing was changed."""
