"""Finds an app by its name, `module:app`, for commands and for the child processes of a worker."""

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType

from ..errors import InterlockError


class AppLoadError(InterlockError):
    """The name is not that of an app, or the app cannot be imported."""


def find(name: str) -> object:
    """Import the object that `module:app` names. Modules in the current directory can be imported, too."""
    module, separator, attribute = name.partition(":")
    if not (module and separator and attribute):
        raise AppLoadError(
            f"-A {name!r} is not the name of an app. Write it as MODULE:APP, such as shop:app for the `app` in shop.py."
        )
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    found: object = import_module(module)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise AppLoadError(f"-A {name}: {module} has no {attribute}. Use the name of the variable with your App.")
        found = getattr(found, part)
    return found


def target_of(app: object) -> str | None:
    """Return the `module:app` name by which another process can import this app; None if there is none."""
    wanted = id(app)
    # Copies, because a garbage collection during a loop over these may import a module.
    for name, module in sys.modules.copy().items():
        # Compare ids in one expression: a large program has some 50,000 module attributes.
        if name == "__main__" or wanted not in map(id, vars(module).copy().values()):
            continue
        for attribute, value in vars(module).copy().items():
            if value is app and getattr(module, "__spec__", None) is not None:
                return f"{name}:{attribute}"
    return None


def not_an_app(name: str, found: object) -> AppLoadError:
    return AppLoadError(
        f"-A {name} is a {type(found).__name__}, not an interlock.App. Use the name of the variable with your App."
    )


def import_module(module: str) -> ModuleType:
    """Import a module. Raises `AppLoadError`, with a one-line message, if that fails."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if module.endswith(".py"):
            raise AppLoadError(
                "-A takes a module, not a file. Write it without .py, as in -A "
                f"{module.removesuffix('.py').replace('/', '.')}:app."
            ) from None
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise AppLoadError(
                f"There is no module {module} here. Run the command in the directory of the module, or correct -A."
            ) from None
        raise AppLoadError(f"{module} cannot be imported: it needs {error.name}, which is not installed.") from None
    except SyntaxError as error:
        raise AppLoadError(
            f"{module} cannot be imported: SyntaxError: {error.msg} ({Path(error.filename or '?').name}, line "
            f"{error.lineno})."
        ) from None
    except Exception as error:  # noqa: BLE001 - the user's module may raise anything
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise AppLoadError(
            f"{module} cannot be imported: {type(error).__name__}: {error} ({Path(place.filename).name}, line "
            f"{place.lineno})."
        ) from None
