"""The librarian's app by name, for `interlock worker -A apps.librarian.app:app` and the other Interlock commands."""

from .assembly import assemble
from .settings import Settings

app = assemble(Settings.from_env()).app
