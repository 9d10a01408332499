"""Modules that another package imports at its start and hardly ever uses."""

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any


class StandIn(types.ModuleType):
    """Imports the module of its name when something in that module is used for the first time."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def stand_ins(*names: str) -> Iterator[None]:
    """Within the context, importing a module of `names` gives a stand-in, unless the module is loaded already."""
    installed = [name for name in names if name not in sys.modules]
    sys.modules.update({name: StandIn(name) for name in installed})
    try:
        yield
    finally:
        for name in installed:
            del sys.modules[name]
