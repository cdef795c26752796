"""The studio's Interlock app, for `interlock worker -A apps.studio.app:app` and the other `interlock` commands."""

from .assembly import studio_from_settings
from .settings import Settings

studio = studio_from_settings(Settings.read())
app = studio.app
