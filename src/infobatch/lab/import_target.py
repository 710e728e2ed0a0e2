"""Import the module that a user names as MODULE:NAME, from the current folder or from installed packages."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

from ..errors import InputError, message
from .format import suggest


def module_of(target: str) -> ModuleType:
    """Import the module of MODULE:NAME.

    Errors raised inside the module, or by what it imports, are passed on unchanged.

    Raises:
        InputError: If there is no such module.
    """
    name, here = target.partition(":")[0], os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)  # as "python -m" does; an installed command has its own folder there
    importlib.invalidate_caches()  # the file may have been created after the folder was last scanned
    try:
        if all(part.isidentifier() for part in name.split(".")):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists, but something it imports does not
    modules = [path.stem for path in Path(here).glob("*.py")]
    like = f"{suggest(name, modules)} " if modules else ""
    remedy = f"{like}Run the command in its folder (this is {here}) or install it, and leave out .py."
    raise InputError(message(f"a module to import before the colon of {target!r}", repr(name), remedy))


def callables_of(module: ModuleType) -> list[str]:
    """List the functions and classes that a module itself defines, without what it imports."""
    return [
        name
        for name, value in vars(module).items()
        if callable(value) and not name.startswith("_") and getattr(value, "__module__", None) == module.__name__
    ]
