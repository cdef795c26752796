"""Who asks: by an access key, or by the session that a browser carries in a cookie."""

from collections.abc import Callable
from datetime import datetime

from starlette.requests import Request
from starlette.responses import Response

from .answers import Wrong
from .body import need_json
from .errors import NotFound
from .people import SESSION, Credential, People, User

COOKIE = "studio_session"
SAFE = frozenset({"GET", "HEAD"})
"""Methods that change nothing."""


class Door:
    """Lets in whom it knows. A cookie comes along whoever sent the browser here, so with one, what changes something must come from our own page."""

    def __init__(self, people: People, now: Callable[[], datetime]) -> None:
        self._people, self._now = people, now

    def user(self, request: Request) -> User:
        """Who asks. `Wrong` for somebody unknown, and for another site's page in somebody's name."""
        key = _bearer(request)
        try:
            if key is not None:
                return self._people.by_key(key)
            user = self._people.user_of_session(_token(request), self._now())
        except NotFound as error:
            raise _unknown(str(error)) from None
        if request.method not in SAFE:
            _own_page(request)
            # A form of another site's can send a few types, and this is none of them.
            need_json(request)
        return user

    def credential(self, request: Request) -> Credential:
        """The credential of this request."""
        key = _bearer(request)
        return Credential.of("session", _token(request)) if key is None else Credential.of("key", key)

    def administrator(self, request: Request) -> User:
        """Who asks, if that is an administrator."""
        user = self.user(request)
        if not user.admin:
            raise Wrong(403, "forbidden", "Only an administrator may do this: ask one.")
        return user

    def sign_in(self, request: Request, key: str, told: Callable[[User], Response]) -> Response:
        """What is told to whom this key belongs to, with a session for their browser."""
        try:
            user, token = self._people.sign_in(key, self._now())
        except NotFound as error:
            raise _unknown(str(error)) from None
        answer = told(user)
        answer.set_cookie(COOKIE, token, max_age=int(SESSION.total_seconds()), path="/", secure=_secure(request), httponly=True, samesite="strict")
        return answer

    def sign_out(self, request: Request, answer: Response) -> Response:
        """The session ends, here and in the browser."""
        if token := request.cookies.get(COOKIE):
            _own_page(request)
            self._people.sign_out(token)
        answer.delete_cookie(COOKIE, path="/", secure=_secure(request), httponly=True, samesite="strict")
        return answer


def not_foreign(request: Request) -> None:
    """Nobody is signed in by another site's page. A program is no page, and says nothing of where it comes from."""
    if "origin" in request.headers or "sec-fetch-site" in request.headers:
        _own_page(request)


def _own_page(request: Request) -> None:
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    if origin is None:
        own = request.headers.get("sec-fetch-site") == "same-origin"
    else:
        # Behind a proxy that ends TLS the page is https, and what arrives here is not.
        own = origin.lower() in {f"https://{host}".lower(), f"{request.url.scheme}://{host}".lower()}
    if not own:
        raise Wrong(403, "foreign_origin", "This came from another site's page, and was not done: use the studio's own page, or an access key.")


def _bearer(request: Request) -> str | None:
    """The access key. Whoever sends one means it: no cookie helps them if it is wrong."""
    if "authorization" not in request.headers:
        return None
    scheme, _, key = request.headers["authorization"].partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise _unknown("Say who you are: send your access key as Authorization: Bearer …")
    return key.strip()


def _token(request: Request) -> str:
    token = request.cookies.get(COOKIE)
    if not token:
        raise _unknown("You are not signed in: sign in, or send your access key as Authorization: Bearer …")
    return token


def _unknown(sentence: str) -> Wrong:
    return Wrong(401, "unauthorized", sentence, {"WWW-Authenticate": "Bearer"})


def _secure(request: Request) -> bool:
    """Whether the browser came over TLS. Behind a proxy that ends it, only the page's own origin may say so."""
    return request.url.scheme == "https" or request.headers.get("origin", "").lower().startswith("https://")
