"""The pages that a worker or its supervisor serves over HTTP: its metrics, and probes of its health."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from wsgiref.types import WSGIApplication

from ..telemetry.endpoint import Address, Endpoint, ResolvedAddress, probe
from ..worker.health import Health


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where to serve the pages; None for pages that nobody asked for."""

    metrics: Address | None = None
    health: Address | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """Pages that are being served."""

    urls: dict[str, object]
    """The address of each page, by its name, for the first line of the log."""
    close: Callable[[], None]


def serve(addresses: Addresses, metrics: WSGIApplication | None, health: Callable[[], Health]) -> Served:
    """Serve the pages until the result is closed. If both addresses resolve to the same one, they share a server."""
    pages: dict[Address, dict[str, WSGIApplication]] = {}
    shared: Address | None = None
    if addresses.metrics is not None and metrics is not None:
        pages[addresses.metrics] = {"metrics": metrics}
        shared = addresses.metrics
    if addresses.health is not None:
        same = shared is not None and _resolve(shared) == _resolve(addresses.health)
        pages.setdefault(shared if same and shared is not None else addresses.health, {}).update(
            healthz=probe("healthy", lambda: health().unhealthy), readyz=probe("ready", lambda: health().unready)
        )
    urls: dict[str, object] = {}
    with ExitStack() as stack:
        for address, named in pages.items():
            endpoint = Endpoint(address, {f"/{name}": page for name, page in named.items()})
            stack.callback(endpoint.close)
            urls |= {name: f"{endpoint.address.url}/{name}" for name in named}
        return Served(urls, stack.pop_all().close)
    raise AssertionError("the block returns")


def _resolve(address: Address) -> ResolvedAddress | Address:
    """Resolve an address. If its host is unknown, return it unchanged: its endpoint then reports the error."""
    try:
        return address.resolve()
    except (OSError, OverflowError):
        return address
