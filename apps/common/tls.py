"""Whom to believe over TLS."""

import functools
import ssl

import httpx


@functools.cache
def trusted() -> ssl.SSLContext:
    """What every client of this process believes: read once, since that takes longer than most requests."""
    return httpx.create_ssl_context()
