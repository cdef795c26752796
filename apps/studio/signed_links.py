"""Links to images: whoever has one may look, until it expires. Nobody can make one without the secret."""

import hashlib
import hmac
import math
from datetime import datetime

LIFE = 900.0
"""Seconds for which a link is good at least."""
GRID = 300
"""Seconds. Links expire on this grid, so that one image has one address for minutes, and browsers need not load it again."""


class Forged(Exception):
    """Nobody here signed this."""


class Expired(Exception):
    """It was signed here, and its time is over."""


class Signer:
    """Signs links to images, and knows its own again."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def signed(self, job_id: str, now: datetime) -> str:
        """The address of a job's image, good for `LIFE` seconds and up to `GRID` more."""
        expires = str(math.ceil((now.timestamp() + LIFE) / GRID) * GRID)
        return f"/images/{job_id}?expires={expires}&signature={self._signature(job_id, expires)}"

    def check(self, job_id: str, expires: str, signature: str, now: datetime) -> None:
        """`Forged` unless this was signed here for this job and moment, then `Expired` once the moment has come."""
        # As bytes: a text that is not ASCII cannot be compared in constant time.
        if not hmac.compare_digest(self._signature(job_id, expires).encode(), signature.encode("utf-8", "surrogatepass")):
            raise Forged("This link was not made here: open the image from the gallery.")
        if now.timestamp() >= int(expires):
            raise Expired("This link has expired: open the image from the gallery again.")

    def _signature(self, job_id: str, expires: str) -> str:
        # The line break is in no id, so that no two pairs read alike.
        return hmac.new(self._secret, f"{job_id}\n{expires}".encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
