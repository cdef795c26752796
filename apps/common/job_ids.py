"""A job's id as people write it: whole, or only its beginning."""

import re
import uuid

SHORTEST = 8
"""Characters that the beginning of an id must have to mean it."""
_BEGINNING = re.compile(rf"[0-9a-f-]{{{SHORTEST},35}}")


def beginning(id: str) -> str | None:
    """The id, or the beginning of one, as the engine writes it; None if it can be neither."""
    try:
        return str(uuid.UUID(id))
    except ValueError:
        return id.lower() if _BEGINNING.fullmatch(id.lower()) else None


def is_id(id: str) -> bool:
    """Could a job have this id? PostgreSQL refuses to compare one with anything but a UUID."""
    try:
        return str(uuid.UUID(id)) == id
    except ValueError:
        return False
