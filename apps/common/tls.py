"""The TLS configuration of HTTP clients."""

import functools
import ssl

import httpx


@functools.cache
def tls_context() -> ssl.SSLContext:
    """The TLS context that all clients share. Loading the certificates takes longer than most requests."""
    return httpx.create_ssl_context()
