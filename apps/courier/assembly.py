"""The courier put together from its settings."""

from apps.common.database import connect

from .jobs import Courier, build
from .outside import Outside
from .settings import Settings


def assembled(settings: Settings) -> Courier:
    """The courier with these settings. It opens nothing yet."""
    engine = connect(settings.database_url)
    return build(settings, engine, Outside(settings, engine))
