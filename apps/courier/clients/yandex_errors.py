"""Translates the answers and failures of Yandex's servers to the courier's own errors."""

import httpx

from apps.common.retry_after import parse_retry_after

from ..errors import CourierError, NotSentError, PermanentError, TemporaryError

TEMPORARY_STATUSES = (408, 423, 425, 429)
"""Statuses below 500 after which a retry may succeed."""
GONE = (404, 410)


def connection_error(error: httpx.HTTPError) -> TemporaryError:
    """Translate a request without a complete answer. Raise it `from None`: httpx's errors may contain addresses."""
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return NotSentError("Yandex Disk is unreachable. The courier will try again.")
    if isinstance(error, httpx.TimeoutException):
        return TemporaryError("Yandex Disk did not answer in time. The courier will try again.")
    return TemporaryError("The connection to Yandex Disk broke. The courier will try again.")


def response_error(response: httpx.Response) -> CourierError:
    """Translate an unsuccessful answer. The caller handles 401."""
    status = response.status_code
    if status in TEMPORARY_STATUSES or status >= 500:
        return TemporaryError(
            f"Yandex Disk cannot answer now (status {status}). The courier will try again.",
            status_code=status,
            retry_after=parse_retry_after(response.headers),
        )
    if status == 403:
        return PermanentError(
            "forbidden", "Yandex Disk denies access to the file. Give the courier's account read access."
        )
    if status in GONE:
        return PermanentError("not_found", "The file is no longer on Yandex Disk.")
    if status >= 400:
        return PermanentError("refused", f"Yandex Disk rejects the request (status {status}).")
    return unreadable_response()


def unreadable_response() -> TemporaryError:
    """Return the error for an answer in an unknown format."""
    return TemporaryError("The answer of Yandex Disk is not readable. The courier will try again.")
