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

    Files of a package keep their place in it. Raises UserError for two different files of the same name.
    """
    script = Path(script_of(args).__file__)
    starts = [(script.parent, script)]
    for name in environment_modules(args):
        file = Path(sys.modules[name].__file__)
        starts.append((import_root(name, file), file))
    files = {(root, path) for root, start in starts for path in own_files(root, start)}
    for root, path in sorted(files):
        copy = folder / path.relative_to(root)
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        elif copy.read_bytes() != path.read_bytes():
            raise UserError(f"{path}: the script or another environment uses another {path.name}, rename one of them")


def own_files(root: Path, start: Path) -> set[Path]:
    """A file and the files below `root` that it imports from there, directly or through one another."""
    found, waiting = set(), [start]
    while waiting:
        path = waiting.pop()
        if path in found or not path.is_file():
            continue
        found.add(path)
        package = path.relative_to(root).parent.parts
        for name in imported(path.read_bytes(), package):
            parts = name.split(".")
            if parts[0] != "popgym_arcade":
                levels = [root.joinpath(*parts[:depth]) for depth in range(1, len(parts) + 1)]
                waiting += [file for level in levels for file in (level.with_suffix(".py"), level / "__init__.py")]
    return found


def imported(source: bytes, package: tuple[str, ...]) -> list[str]:
    """The full names of what a module of `package` imports; for `from a import b`, a and a.b, which may be a module."""
    names = []
    try:
        tree = ast.parse(source)
    except SyntaxError:  # importing it says so
        return names
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            names += [f"{module}.{alias.name}".strip(".") for alias in node.names]
            names += [module] if module else []
    return [name for name in names if "*" not in name]


def import_root(name: str, file: Path) -> Path:
    """The folder from which a module is imported: for `games.doors`, the one that contains `games`."""
    return file.parents[name.count(".") + (file.name == "__init__.py")]


def environment_modules(args: Any) -> list[str]:
    """The modules that `--env-id MODULE:CLASS` names and that are your own: single files, and modules of packages next
    to the script or in the working directory.
    """
    near = {Path(script_of(args).__file__).parent.resolve(), Path.cwd()}
    names = {task.env_id.partition(":")[0] for task in args.tasks if ":" in task.env_id}

    def is_own(name: str) -> bool:
        module = sys.modules[name]
        if "." not in name and not hasattr(module, "__path__"):
            return True
        is_ours = name.partition(".")[0] == "popgym_arcade"
        return not is_ours and import_root(name, Path(module.__file__)).resolve() in near

    return sorted(name for name in names if is_own(name))


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
    copies = sorted(own_files(copy.parent, copy))
    main = sys.modules["__main__"]
    running = Path(getattr(main, "__file__", None) or "")
    if running.stem == name and is_same(copies, copy.parent, running.parent):
        return main
    spec = importlib.util.find_spec(name)
    if spec and spec.origin and is_same(copies, copy.parent, Path(spec.origin).parent):
        return importlib.import_module(name)
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in copies)).hexdigest()[:12]
    unique = f"{re.sub('[^A-Za-z0-9_]', '_', name)}_{digest}"
    if unique in sys.modules:
        return sys.modules[unique]
    if spec and spec.origin and Path(spec.origin).is_file():
        print(f"{spec.origin} differs from this run's script: executing {copy}", file=sys.stderr)
    return executed(unique, copy, Path(about.get("script_path", copy)).parent)


def is_same(copies: list[Path], folder: Path, root: Path) -> bool:
    """Whether each of the copies in a run folder equals the file at its place below `root`."""
    originals = [root / copy.relative_to(folder) for copy in copies]
    pairs = zip(copies, originals, strict=True)
    return all(path.is_file() and copy.read_bytes() == path.read_bytes() for copy, path in pairs)


def load_environments(about: dict[str, Any], folder: Path) -> None:
    """Imports the copies of your own environments that a run was trained on, under their own names."""
    env_ids = about["args"].get("env_ids") or (about["args"].get("env_id", ""),)
    for name in sorted({env_id.partition(":")[0] for env_id in env_ids if ":" in env_id}):
        place = folder.joinpath(*name.split("."))
        copy = next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)
        if copy is None:
            continue
        known = sys.modules.get(name)
        if known is None:
            executed(name, copy, folder)
            continue
        file = Path(known.__file__)
        if not is_same(sorted(own_files(folder, copy)), folder, import_root(name, file)):
            raise UserError(f"{copy} differs from {file}, which is already loaded: load one run at a time")


def executed(name: str, path: Path, beside: Path) -> ModuleType:
    """The module of a file, as `sys.modules[name]`. What it imports from its own folder or from `beside` is private to
    it: another copy that imports a module of that name gets the one in its own folder.

    Raises:
        UserError: if it cannot be imported
    """
    root = import_root(name, path)
    folders = [str(root.resolve()), str(beside)]
    hidden = {other: sys.modules.pop(other) for other in shadowing(root, path)}
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    before = set(sys.modules)
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
            file = Path(getattr(sys.modules[other], "__file__", None) or "")
            if root.resolve() in file.parents or file.parent == Path(beside):
                del sys.modules[other]
        sys.modules.update(hidden)
    return module


def shadowing(root: Path, path: Path) -> list[str]:
    """The loaded modules that a file below `root` would get instead of the different ones that it imports there."""
    tops = set()
    for file in own_files(root, path):
        *package, last = file.relative_to(root).with_suffix("").parts
        loaded = sys.modules.get(".".join([*package, last] if last != "__init__" else package))
        origin = Path(getattr(loaded, "__file__", None) or "")
        if origin.is_file() and origin.read_bytes() != file.read_bytes():
            tops.add((*package, last)[0])
    return [name for name in sys.modules if name.partition(".")[0] in tops]
