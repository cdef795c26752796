"""`interlock worker --reload`: restarts the workers when the code changes."""

import importlib.util
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from ..worker.supervisor import Supervisor
from .common_options import CommandError

_log = logging.getLogger("interlock")


def require_watcher() -> None:
    """Raise `CommandError` if the package that watches files is not installed."""
    if importlib.util.find_spec("watchfiles") is None:
        raise CommandError(
            "--reload needs watchfiles, which is not installed. Run pip install 'interlock[reload]', or start the "
            "worker without --reload."
        )


async def watch(supervisor: Supervisor) -> None:
    """Reload the workers whenever a Python file in the current directory, or below it, changes."""
    from watchfiles import PythonFilter, awatch  # pyright: ignore[reportUnknownVariableType] - types of anyio

    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    here = Path.cwd()
    try:
        async for changes in awatch(here, watch_filter=PythonFilter(), ignore_permission_denied=True):
            supervisor.reload(f"{_names([path for _, path in changes], here)} changed")
    except (OSError, RuntimeError) as error:
        # The system limits how many files may be watched.
        _log.error("%s cannot be watched (%s): restart the worker to load changed code", here, error)


def _names(paths: Iterable[str], here: Path) -> str:
    first, *more = sorted({os.path.relpath(path, here) for path in paths})
    return f"{first} and {len(more)} more" if more else first
