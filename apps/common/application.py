"""Base class of an application: an Interlock app with tables of its own in the same database."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from sqlalchemy import Connection, Engine

from interlock import App

from .database import close_connections, create_sqlite_file


@dataclass(frozen=True)
class Application(ABC):
    """An Interlock app, and the SQLAlchemy engine of the application's own tables."""

    app: App[Connection]
    engine: Engine

    def migrate(self) -> None:
        """Bring the database to this code's version. Running it again changes nothing."""
        # The file contains names, key hashes and user input, so it is created with restricted permissions.
        create_sqlite_file(self.engine)
        self.app.migrate()
        self._create_tables()

    @abstractmethod
    def _create_tables(self) -> None:
        """Create the application's own tables. The tables of Interlock exist by then."""

    def close(self) -> None:
        """Close every database connection of this process, also those that other threads return later."""
        self.app.close()
        close_connections(self.engine)
