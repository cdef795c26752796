"""Job ids as people type them: a full id or a unique prefix."""

import re
import uuid

MIN_PREFIX = 8
"""The shortest prefix that is accepted, in characters."""
_PREFIX = re.compile(rf"[0-9a-f-]{{{MIN_PREFIX},35}}")


def parse_id_prefix(id: str) -> str | None:
    """Normalize an id or a prefix of one. None if it is neither."""
    try:
        return str(uuid.UUID(id))
    except ValueError:
        return id.lower() if _PREFIX.fullmatch(id.lower()) else None


def is_id(id: str) -> bool:
    """Whether this is a job id. PostgreSQL refuses to compare an id with anything but a UUID."""
    try:
        return str(uuid.UUID(id)) == id
    except ValueError:
        return False
