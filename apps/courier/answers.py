"""What Yandex's servers answer, or fail to, in the courier's own errors."""

import httpx

from apps.common.pauses import retry_after

from .errors import CourierError, Refusal, Trouble, Unsent

LATER = (408, 423, 425, 429)
"""Besides a 5xx, what may be otherwise the next time."""
GONE = (404, 410)


def broken(error: httpx.HTTPError) -> Trouble:
    """A request that got no whole answer. Raise it `from None`: httpx's own errors may show addresses."""
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return Unsent("Yandex Disk cannot be reached. It may be down, or the network is: it is tried again.")
    if isinstance(error, httpx.TimeoutException):
        return Trouble("Yandex Disk did not answer in time. It is tried again.")
    return Trouble("The connection to Yandex Disk broke. It is tried again.")


def refused(response: httpx.Response) -> CourierError:
    """An answer that is not what was asked for. What 401 means only the caller knows."""
    status = response.status_code
    if status in LATER or status >= 500:
        return Trouble(f"Yandex Disk cannot answer now (status {status}). It is tried again.", status_code=status, retry_after=retry_after(response.headers))
    if status == 403:
        return Refusal("forbidden", "Yandex Disk denies access to the file. Let the courier's account read it.")
    if status in GONE:
        return Refusal("not_found", "Yandex Disk has no such file any more.")
    if status >= 400:
        return Refusal("refused", f"Yandex Disk refuses the request (status {status}).")
    return strange()


def strange() -> Trouble:
    """An answer that is of no known form."""
    return Trouble("Yandex Disk answered something that the courier cannot read. It is tried again.")
