"""The script of a run: its name, its copy in the run folder, and how that copy is loaded.

A run is always read by exactly the code that made it. Loading a run therefore executes Python from its folder.
"""

import ast
import hashlib
import importlib
import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from popgym_arcade.baselines.errors import UserError, one_line

CONTRACT = ("Args", "POLICIES", "make_actor", "make_train", "forward", "initial_carry", "Output")


def script_of(args: Any) -> ModuleType:
    """The module in which the class of these arguments is defined."""
    return sys.modules[type(args).__module__]


def script_name(args: Any) -> str:
    """The name of a script's file, without the extension."""
    return Path(script_of(args).__file__).stem


def keep_copies(args: Any, folder: Path) -> None:
    """Copies to a run folder the script, your own environments, and what either imports from its own folder.

    Raises UserError for two different files of the same name.
    """
    modules = [script_of(args), *(sys.modules[name] for name in environment_modules(args))]
    for path in set().union(*(own_files(Path(module.__file__)) for module in modules)):
        copy = folder / path.name
        if not copy.exists():
            shutil.copyfile(path, copy)
        elif copy.read_bytes() != path.read_bytes():
            raise UserError(f"{path}: the script or another environment uses another {path.name}, rename one of them")


def own_files(script: Path) -> set[Path]:
    """A script and the files in its folder that it imports, directly or through one another."""
    found, waiting = set(), [script]
    while waiting:
        path = waiting.pop()
        if path in found or not path.is_file():
            continue
        found.add(path)
        for node in ast.walk(ast.parse(path.read_bytes())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            waiting += [path.with_name(f"{name.partition('.')[0]}.py") for name in names]
    return found


def environment_modules(args: Any) -> list[str]:
    """The modules that `--env-id MODULE:CLASS` names, where each is a single file."""
    names = {task.env_id.partition(":")[0] for task in args.tasks if ":" in task.env_id}
    return sorted(name for name in names if "." not in name and not hasattr(sys.modules[name], "__path__"))


def read_about(folder: str | Path) -> dict[str, Any]:
    """The contents of a run's `args.json`: "script", "args", versions. Raises UserError where there is no run."""
    try:
        about = json.loads((Path(folder) / "args.json").read_text())
        about["args"] = {name: tuple(x) if isinstance(x, list) else x for name, x in about["args"].items()}
        return about | {"script": str(about["script"])}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        raise UserError(f"{folder} is not a run folder: it has no readable args.json") from None


def load_script(folder: str | Path) -> ModuleType:
    """The script of a run: the copy in its folder or, for old runs without a copy, the script that can be imported.

    Prints one line to standard error if the copy differs from the importable script of the same name.

    Raises:
        UserError: if there is no such script, it cannot be imported, or it is not a training script.
    """
    about, folder = read_about(folder), Path(folder)
    name = about["script"]
    if not re.fullmatch(r"[\w-]+", name):
        raise UserError(f"{folder} is not a run folder: {name!r} in its args.json is not the name of a script")
    copy = folder / f"{name}.py"
    load_environments(about, folder)
    if copy.is_file():
        script = loaded_copy(name, copy, about)
    else:
        if importlib.util.find_spec(name) is None:
            raise UserError(f"{folder} was made by {name}.py and has no copy of it: put that script next to this one")
        script = importlib.import_module(name)
    check_contract(script, f"{folder} was made by {name}.py, which")
    if "episode_return" in getattr(getattr(script, "Transition", None), "__dataclass_fields__", ()):
        raise UserError(f"{folder} was made by an older version of this package, before its scripts had an Episode")
    return script


def check_contract(script: ModuleType, what: str) -> None:
    """Raises UserError, starting with `what`, if a script lacks a name that the baselines or the analysis use."""
    missing = [part for part in CONTRACT if not hasattr(script, part)]
    if missing:
        raise UserError(f"{what} is not a training script: it has no {missing[0]}, see docs/scripts.md")


def loaded_copy(name: str, copy: Path, about: dict[str, Any]) -> ModuleType:
    """The module of a copied script. Copies with the same contents share one module, and thus compiled programs."""
    copies = sorted(copy.parent.glob("*.py"))  # with the modules it imports
    main = sys.modules["__main__"]
    running = Path(getattr(main, "__file__", None) or "")
    if running.stem == name and is_same(copies, running):
        return main
    spec = importlib.util.find_spec(name)
    if spec and spec.origin and is_same(copies, Path(spec.origin)):
        return importlib.import_module(name)
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in copies)).hexdigest()[:12]
    unique = f"{re.sub('[^A-Za-z0-9_]', '_', name)}_{digest}"
    if unique in sys.modules:
        return sys.modules[unique]
    if spec and spec.origin and Path(spec.origin).is_file():
        print(f"{spec.origin} differs from this run's script: executing {copy}", file=sys.stderr)
    return executed(unique, copy, Path(about.get("script_path", copy)).parent)


def is_same(copies: list[Path], script: Path) -> bool:
    """Whether each copy equals the file of its name next to a script, if any; the script must be among these."""
    originals = {copy: script.with_name(copy.name) for copy in copies}
    there = {copy: path for copy, path in originals.items() if path.is_file()}
    return script in there.values() and all(copy.read_bytes() == path.read_bytes() for copy, path in there.items())


def load_environments(about: dict[str, Any], folder: Path) -> None:
    """Imports the copies of your own environments that a run was trained on, under their own names."""
    env_ids = about["args"].get("env_ids") or (about["args"].get("env_id", ""),)
    for name in sorted({env_id.partition(":")[0] for env_id in env_ids if ":" in env_id}):
        copy = folder / f"{name}.py"
        if not copy.is_file():
            continue
        known = sys.modules.get(name)
        if known is None:
            executed(name, copy, folder)
        elif not is_same(sorted(own_files(copy)), Path(known.__file__)):
            raise UserError(f"{copy} differs from {known.__file__}, which is already loaded: load one run at a time")


def executed(name: str, path: Path, beside: Path) -> ModuleType:
    """The module of a file, as `sys.modules[name]`. What it imports from its own folder or from `beside` is private to
    it: another copy that imports a module of that name gets the one in its own folder.

    Raises:
        UserError: if it cannot be imported
    """
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    before, folders = set(sys.modules), [str(path.parent.resolve()), str(beside)]
    sys.path[:0] = folders
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        its = "its args.json lists the versions it ran with"
        raise UserError(f"{path} cannot be imported, {its}: {one_line(error)}") from None
    finally:
        for beginning in folders:
            sys.path.remove(beginning)
        for other in set(sys.modules) - before:
            if str(Path(getattr(sys.modules[other], "__file__", None) or "").parent) in folders:
                del sys.modules[other]
    return module
