"""The version of Interlock's tables that this code uses, the same for both stores."""

from ..errors import InterlockError

VERSION = 5


def check_version(tables: str, found: int) -> None:
    """Raise `InterlockError` if the database's tables have another version than this code uses."""
    if found > VERSION:
        raise InterlockError(
            f"The database's {tables} have version {found}, newer than version {VERSION}, which this code uses: "
            "upgrade the interlock package. Nothing was changed."
        )
    if found < VERSION:
        raise InterlockError(
            f"The database's {tables} have version {found}, from before the first release, and cannot be upgraded to "
            f"version {VERSION}: use a new database, or drop them and run: interlock migrate -A module:app. Nothing "
            "was changed."
        )
