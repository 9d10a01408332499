"""The run folder: `args.json`, a copy of the script, and disk errors as one line."""

import contextlib
import dataclasses
import errno
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from popgym_arcade.baselines.arguments import run_name
from popgym_arcade.baselines.environment import in_names
from popgym_arcade.baselines.errors import CannotWrite
from popgym_arcade.baselines.scripts import keep_copies, script_name, script_of

PACKAGES = "jax jaxlib flax gymnax memax equinox distrax flashbax optax orbax-checkpoint numpy tyro tensorboard"
DISK_ERRORS = "ENOSPC EDQUOT EFBIG EROFS EACCES EPERM EIO ENOENT".split()


def make_run_folder(args: Any) -> Path:
    """A new folder with `args.json` and a copy of the script. An existing one is never touched."""
    name = f"{run_name(args)}__{time.strftime('%Y%m%d-%H%M%S')}"
    for attempt in range(1, 1000):
        folder = Path(args.run_dir) / (name if attempt == 1 else f"{name}-{attempt}")
        try:
            make_folder(folder)
            break
        except FileExistsError:
            continue
        except OSError as error:
            raise CannotWrite(f"--run-dir {args.run_dir}: {error.strerror}") from None
    else:
        raise CannotWrite(f"--run-dir {args.run_dir}: {name} and 998 numbered ones exist")
    with removed_on_failure(folder):
        (folder / "args.json").write_text(json.dumps(describe(args), indent=2))
        keep_copies(args, folder)
    return folder


def make_folder(folder: Path) -> None:
    """Makes a folder and its parents. Raises OSError, leaving nothing behind, if it exists or cannot be made."""
    missing = [above for above in folder.parents if not above.exists()]
    try:
        folder.mkdir(parents=True)
    except OSError:
        for above in missing:
            with contextlib.suppress(OSError):
                above.rmdir()
        raise


def title_of(folder: Path) -> str:
    """The name of a run folder without its time, as the title of a picture."""
    return folder.resolve().name.rpartition("__")[0].replace("__", " · ")


def video_paths(args: Any, folder: Path) -> list[Path]:
    """Where `--capture-video` puts the video of each task."""
    if len(args.task_names) == 1:
        return [folder / "episode.gif"]
    return [folder / f"episode_{in_names(name)}.gif" for name in args.task_names]


@contextlib.contextmanager
def removed_on_failure(folder: Path | None) -> Iterator[None]:
    """Within the context, an error removes the new folder: nothing has been computed in it yet. None: no new folder."""
    try:
        yield
    except BaseException:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def describe(args: Any) -> dict[str, Any]:
    """What `args.json` says: the script, its arguments, and what they ran on."""
    return {
        "script": script_name(args),
        "script_path": str(Path(script_of(args).__file__).resolve()),
        "args": dataclasses.asdict(args),
        "versions": {"python": sys.version.split()[0]} | installed_versions(),
        "random_generator": str(jax.config.jax_default_prng_impl),
        "device": f"{jax.device_count()} x {jax.devices()[0].device_kind}",
        "git_commit": git_commit(Path(script_of(args).__file__).parent),
    }


def installed_versions() -> dict[str, str]:
    """Versions of the installed packages that results depend on."""
    found = {}
    for package in [*PACKAGES.split(), "popgym-arcade"]:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def git_commit(folder: Path) -> str | None:
    """The commit that is checked out in a folder, with "-dirty" if a tracked file differs; None outside of git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    with contextlib.suppress(OSError):
        return subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout.strip() or None


@contextlib.contextmanager
def one_line_for_disk_errors(folder: str | Path) -> Iterator[None]:
    """Within the context, a disk error becomes `CannotWrite`. What was saved before stays."""
    reasons = [os.strerror(getattr(errno, name)) for name in DISK_ERRORS]
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:  # tensorstore raises the latter two
        known = [reason for reason in reasons if reason in str(error)]
        if not known:
            raise
        raise CannotWrite(f"{folder}: {known[0]}; fix that, then resume from the last checkpoint") from None
