"""The librarian's app by name, for `interlock worker -A apps.librarian.app:app` and every other command of Interlock."""

from .assembly import assembled
from .settings import Settings

app = assembled(Settings.from_env()).app
