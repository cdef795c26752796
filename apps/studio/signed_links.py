"""Signed links to images: anyone with a link can open the image until it expires."""

import hashlib
import hmac
import math
from datetime import datetime

LIFETIME = 900.0
"""The shortest lifetime of a link, in seconds."""
GRID = 300
"""Links expire at multiples of this many seconds, so that an image keeps its address and browsers can cache it."""


class InvalidLink(Exception):
    """The signature is not valid."""


class ExpiredLink(Exception):
    """The signature is valid, but the link has expired."""


class Signer:
    """Signs links to images and verifies them."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign(self, job_id: str, now: datetime) -> str:
        """The address of a job's image, valid for `LIFETIME` seconds and up to `GRID` more."""
        expires = str(math.ceil((now.timestamp() + LIFETIME) / GRID) * GRID)
        return f"/images/{job_id}?expires={expires}&signature={self._signature(job_id, expires)}"

    def check(self, job_id: str, expires: str, signature: str, now: datetime) -> None:
        """Raise `InvalidLink` if the signature does not match, else `ExpiredLink` if the link has expired."""
        # As bytes: `compare_digest` rejects text that is not ASCII.
        if not hmac.compare_digest(
            self._signature(job_id, expires).encode(), signature.encode("utf-8", "surrogatepass")
        ):
            raise InvalidLink("This link is not valid. Open the image from the gallery.")
        if now.timestamp() >= int(expires):
            raise ExpiredLink("This link has expired. Open the image from the gallery again.")

    def _signature(self, job_id: str, expires: str) -> str:
        # IDs contain no line break, so two different pairs never have the same text.
        return hmac.new(
            self._secret, f"{job_id}\n{expires}".encode("utf-8", "surrogatepass"), hashlib.sha256
        ).hexdigest()
