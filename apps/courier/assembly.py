"""The courier put together from its settings."""

from . import tables
from .jobs import Courier, build
from .outside import Outside
from .settings import Settings


def assembled(settings: Settings) -> Courier:
    """The courier with these settings. It opens nothing yet."""
    engine = tables.connect(settings.database_url)
    return build(settings, engine, Outside(settings, engine))
