"""An application: an app of the engine's, and tables of its own beside the engine's."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from sqlalchemy import Connection, Engine

from interlock import App

from .database import create_file


@dataclass(frozen=True)
class Application(ABC):
    """The app, and the application's own way to the database."""

    app: App[Connection]
    engine: Engine

    def migrate(self) -> None:
        """Bring the database to this code's version. Running it again changes nothing."""
        # It holds names, hashes of keys and what people wrote.
        create_file(self.engine)
        self.app.migrate()
        self._make_tables()

    @abstractmethod
    def _make_tables(self) -> None:
        """The application's own, once the engine's are there."""

    def close(self) -> None:
        """Give back every connection of this process."""
        self.app.close()
        self.engine.dispose()
