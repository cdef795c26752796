"""The studio's app by name, for `interlock worker -A apps.studio.app:app` and every other command of Interlock."""

from .assembly import assembled
from .settings import Settings

studio = assembled(Settings.read())
app = studio.app
