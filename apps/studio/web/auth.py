"""Authentication: by an access key, or by a session cookie."""

from collections.abc import Callable
from datetime import datetime

from starlette.requests import Request
from starlette.responses import Response

from ..errors import NotFound
from ..users import SESSION, Credential, User, Users
from .request_body import require_json
from .responses import ApiError

COOKIE = "studio_session"
SAFE = frozenset({"GET", "HEAD"})
"""Methods that do not change anything."""


class Auth:
    """Identifies the user of a request. With a cookie, changes are accepted only from the studio's own page (CSRF)."""

    def __init__(self, users: Users, now: Callable[[], datetime]) -> None:
        self._users, self._now = users, now

    def user(self, request: Request) -> User:
        """The user of this request. Raises `ApiError` without valid credentials, or for a change from another site."""
        key = _bearer(request)
        try:
            if key is not None:
                return self._users.by_key(key)
            user = self._users.user_by_session(_token(request), self._now())
        except NotFound as error:
            raise _unknown(str(error)) from None
        if request.method not in SAFE:
            _own_page(request)
            # A form on another site cannot send JSON.
            require_json(request)
        return user

    def credential(self, request: Request) -> Credential:
        """The credential of this request."""
        key = _bearer(request)
        return Credential.of("session", _token(request)) if key is None else Credential.of("key", key)

    def administrator(self, request: Request) -> User:
        """The user of this request, if they are an administrator."""
        user = self.user(request)
        if not user.admin:
            raise ApiError(403, "forbidden", "Only administrators can do this.")
        return user

    def sign_in(self, request: Request, key: str, respond: Callable[[User], Response]) -> Response:
        """Start a session. Return the response of `respond` for this user, with a session cookie."""
        try:
            user, token = self._users.sign_in(key, self._now())
        except NotFound as error:
            raise _unknown(str(error)) from None
        answer = respond(user)
        answer.set_cookie(
            COOKIE,
            token,
            max_age=int(SESSION.total_seconds()),
            path="/",
            secure=_secure(request),
            httponly=True,
            samesite="strict",
        )
        return answer

    def sign_out(self, request: Request, answer: Response) -> Response:
        """End the session and delete the cookie."""
        if token := request.cookies.get(COOKIE):
            _own_page(request)
            self._users.sign_out(token)
        answer.delete_cookie(COOKIE, path="/", secure=_secure(request), httponly=True, samesite="strict")
        return answer


def reject_foreign_page(request: Request) -> None:
    """Refuse a sign-in from another site's page. Programs send neither header and are not affected."""
    if "origin" in request.headers or "sec-fetch-site" in request.headers:
        _own_page(request)


def _own_page(request: Request) -> None:
    origin, host = request.headers.get("origin"), request.headers.get("host", "")
    if origin is None:
        own = request.headers.get("sec-fetch-site") == "same-origin"
    else:
        # Behind a proxy that terminates TLS, the page uses https but this request arrives over http.
        own = origin.lower() in {f"https://{host}".lower(), f"{request.url.scheme}://{host}".lower()}
    if not own:
        raise ApiError(
            403,
            "foreign_origin",
            "The request came from another site and was refused. Use the studio's own page or an access key.",
        )


def _bearer(request: Request) -> str | None:
    """The access key, if there is one. A wrong key is refused even if the cookie is valid."""
    if "authorization" not in request.headers:
        return None
    scheme, _, key = request.headers["authorization"].partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise _unknown("Authentication is required. Send your access key as Authorization: Bearer …")
    return key.strip()


def _token(request: Request) -> str:
    token = request.cookies.get(COOKIE)
    if not token:
        raise _unknown("You are not signed in. Sign in, or send your access key as Authorization: Bearer …")
    return token


def _unknown(sentence: str) -> ApiError:
    return ApiError(401, "unauthorized", sentence, {"WWW-Authenticate": "Bearer"})


def _secure(request: Request) -> bool:
    """Whether the browser uses TLS. Behind a proxy that terminates TLS, the Origin header shows it."""
    return request.url.scheme == "https" or request.headers.get("origin", "").lower().startswith("https://")
