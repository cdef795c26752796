"""An app by its name, `module:app`: found in the same way by commands and by the processes that a worker starts."""

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType

from .errors import InterlockError


class Unloadable(InterlockError):
    """The name leads to no app, or to one that cannot be imported."""


def find(name: str) -> object:
    """What `module:app` names, with the directory where the program was started among the places to import from."""
    module, separator, attribute = name.partition(":")
    if not (module and separator and attribute):
        raise Unloadable(f"-A {name!r} names no app: write it as MODULE:APP, such as shop:app for the `app` in shop.py.")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    found: object = imported(module)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise Unloadable(f"-A {name}: {module} has no {attribute}: name the variable that holds your App.")
        found = getattr(found, part)
    return found


def not_an_app(name: str, found: object) -> Unloadable:
    return Unloadable(f"-A {name} is a {type(found).__name__}, not an interlock.App: name the variable that holds your App.")


def imported(module: str) -> ModuleType:
    """The module, or one sentence on why there is none."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if module.endswith(".py"):
            raise Unloadable(f"-A names a module, not a file: write it without .py, as in -A {module.removesuffix('.py').replace('/', '.')}:app.") from None
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise Unloadable(f"There is no module {module} here: run the command where it can be imported from, or correct -A.") from None
        raise Unloadable(f"{module} cannot be imported: it needs {error.name}, which is not installed.") from None
    except SyntaxError as error:
        raise Unloadable(f"{module} cannot be imported: SyntaxError: {error.msg} ({Path(error.filename or '?').name}, line {error.lineno}).") from None
    except Exception as error:  # noqa: BLE001 - the user's module may raise anything
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise Unloadable(f"{module} cannot be imported: {type(error).__name__}: {error} ({Path(place.filename).name}, line {place.lineno}).") from None
