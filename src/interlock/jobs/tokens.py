"""Signs and reads the tokens of questions: each proves which job a person or another system may answer."""

import os
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, cast

from ..errors import InvalidToken, UsageError

if TYPE_CHECKING:
    from itsdangerous import URLSafeSerializer

VARIABLE = "INTERLOCK_SECRET"
SHORTEST = 24
"""The fewest characters of a secret."""
_SALT = "interlock.question"
_HOW = "Create one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"


class Tokens:
    """The tokens of one app. The first secret signs; a token signed with any of them is valid."""

    def __init__(self, given: str | Sequence[str] | None = None) -> None:
        self._given = None if given is None else _check([given] if isinstance(given, str) else list(given))

    def check(self, kind: str) -> None:
        """Raise `UsageError`, which names the kind that asks questions, if no token can be signed."""
        self._signers(f"The kind {kind} asks questions, which need")

    def sign(self, kind: str, root: str) -> str:
        """Return the token for the questions of a job and all its redrives. `root` is the first of these jobs.

        The token is the same at each call, fits into a URL, and contains only the kind and `root`.
        """
        return str(self._signers()[0].dumps([kind, root]))

    def read(self, token: str) -> tuple[str, str]:
        """Return the kind and the first job that a token names. `InvalidToken` if this app did not sign it."""
        signers = self._signers()
        from itsdangerous import BadData

        for signer in signers:
            try:
                named = cast("list[str]", signer.loads(token))
            except (BadData, TypeError, UnicodeError):
                continue
            # Base64 has several spellings of one signature. Only the one that `sign` returns is accepted.
            if signer.dumps(named) == token:
                kind, root = named
                return kind, root
        raise InvalidToken("The token is not valid: it is incomplete, was changed, or was signed with another secret.")

    def _signers(self, needed: str = "Questions need") -> "list[URLSafeSerializer]":
        try:
            from itsdangerous import URLSafeSerializer
        except ModuleNotFoundError:
            raise UsageError(f"{needed} the package itsdangerous. Run pip install 'interlock[links]'.") from None
        options = {"key_derivation": "hmac", "digest_method": sha256}
        return [URLSafeSerializer(secret, _SALT, signer_kwargs=options) for secret in self._secrets(needed)]

    def _secrets(self, needed: str) -> Sequence[str]:
        if self._given is not None:
            return self._given
        if not (found := os.environ.get(VARIABLE, "").split()):
            raise UsageError(f"{needed} a secret to sign their tokens: pass App(secret=…) or set {VARIABLE}. {_HOW}")
        return _check(found)


def _check(secrets: Sequence[str]) -> Sequence[str]:
    if not secrets or any(not isinstance(each, str) or len(each) < SHORTEST for each in secrets):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"A secret for tokens is a string of at least {SHORTEST} random characters. {_HOW}")
    return secrets
