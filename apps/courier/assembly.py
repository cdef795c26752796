"""Builds the courier from its settings."""

from apps.common.database import make_engine

from .clients.connections import Clients
from .jobs import Courier, build_courier
from .settings import Settings


def assemble(settings: Settings) -> Courier:
    """Build the courier with these settings. Nothing is opened yet."""
    engine = make_engine(settings.database_url)
    return build_courier(settings, engine, Clients(settings, engine))
