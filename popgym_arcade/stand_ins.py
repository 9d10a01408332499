"""Stand-ins for modules that another package imports on start-up and hardly ever uses."""

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any


class StandIn(types.ModuleType):
    """Imports the module it is named after when something in it is first used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def stand_ins(*names: str) -> Iterator[None]:
    """Within the context, importing one of these modules gives a stand-in, unless it is already loaded."""
    installed = [name for name in names if name not in sys.modules]
    sys.modules.update({name: StandIn(name) for name in installed})
    try:
        yield
    finally:
        for name in installed:
            del sys.modules[name]
