"""Environments of your own, named `MODULE:CLASS`."""

import importlib
import os
import sys
import traceback

from gymnax.environments.environment import Environment


def class_of(name: str) -> type[Environment]:
    """The class that `MODULE:CLASS` names, with the module on Python's path or in the working directory.

    Raises ValueError, in one line, if the module cannot be imported or has no such gymnax environment.
    """
    module_name, _, class_name = name.partition(":")
    if module_name.endswith(".py"):
        raise ValueError(f"name the module without .py, {module_name[:-3]}:{class_name}")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = "" if "importlib" in where.filename else f" ({where.filename}, line {where.lineno})"
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"cannot import {module_name}: {why}{place}") from None
    found = getattr(module, class_name, None)
    if not (isinstance(found, type) and issubclass(found, Environment)):
        own = {name: x for name, x in vars(module).items() if getattr(x, "__module__", "") == module_name}
        classes = [name for name, x in own.items() if isinstance(x, type) and issubclass(x, Environment)]
        its = f"its environments are {', '.join(classes)}" if classes else "it has none"
        file = getattr(module, "__file__", module_name)
        raise ValueError(f"{module_name} has no gymnax environment {class_name!r}; {its} ({file})")
    return found
