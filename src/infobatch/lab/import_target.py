"""A module that a person names before a colon: of the current folder, or installed."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

from ..errors import InputError, message
from .format import suggest


def module_of(target: str) -> ModuleType:
    """The module of MODULE:NAME. Errors of its own come as they are, also those of what it imports."""
    name, here = target.partition(":")[0], os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)  # as "python -m" does; a command has its own folder there instead
    importlib.invalidate_caches()  # the file may be younger than this process's last look into the folder
    try:
        if all(part.isidentifier() for part in name.split(".")):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there; what it imports is not
    modules = [path.stem for path in Path(here).glob("*.py")]
    like = f"{suggest(name, modules)} " if modules else ""
    remedy = f"{like}Looked in {here}, so begin in its folder, and among the installed packages; no .py at the end."
    raise InputError(message(f"a module to import before the colon of {target!r}", repr(name), remedy))
