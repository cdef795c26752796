"""The courier's app by name, for `interlock worker -A apps.courier.app:app` and every other command of Interlock."""

from .assembly import assembled
from .settings import Settings

courier = assembled(Settings.read())
app = courier.app
