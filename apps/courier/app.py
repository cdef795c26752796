"""The courier's Interlock app, for `interlock worker -A apps.courier.app:app` and the other commands of Interlock."""

from .assembly import assemble
from .settings import Settings

courier = assemble(Settings.load())
app = courier.app
