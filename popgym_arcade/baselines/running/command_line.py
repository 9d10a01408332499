"""From the command line to `main(args)`: flags, `--resume`, `--from-run`, and errors as one line with an exit code."""

import argparse
import dataclasses
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import jax

from popgym_arcade.baselines.arguments import RunArgs
from popgym_arcade.baselines.devices import hosts
from popgym_arcade.baselines.errors import CannotWrite, UserError
from popgym_arcade.baselines.limits import flag
from popgym_arcade.baselines.running.flags import read_flags, readable_output
from popgym_arcade.baselines.running.mirror import check_tracking
from popgym_arcade.baselines.scripts import check_contract, load_script, read_about, script_name, script_of

NOWHERE = {"coordinator_address": "", "num_processes": None, "process_id": None}
MAY_DIFFER = (  # from the run that is resumed
    *("log_every", "eval_every", "checkpoint_every", "save_buffer", "capture_video", "run_dir", "resume", "from_run"),
    *("num_devices", "distributed", *NOWHERE, "deterministic", "compile_cache"),
    *("track", "wandb_project_name", "wandb_entity"),
)


def launch(main: Callable, args_class: type[RunArgs]) -> None:
    """Runs a script: `main` with checked arguments, or the copy in the run folder with `--resume`."""
    quiet_threads()
    name = Path(sys.modules[main.__module__].__file__).stem
    with readable_output():
        try:
            check_contract(sys.modules[main.__module__], f"{name}.py")
            args = parse_args(args_class, sys.argv[1:])
            script_of(args).main(args)
        except UserError as error:
            print(f"{name}.py: error: {error}", file=sys.stderr)
            if isinstance(error, CannotWrite):  # only the process that writes has encountered it
                hosts.abandon(error.exit_code)
            hosts.leave()
            sys.exit(error.exit_code)


def parse_args(args_class: type[RunArgs], argv: list[str]) -> RunArgs:
    """Checked arguments of a command line; with `--resume` they belong to the script in the run folder.

    Raises:
        UserError: see `RunArgs.checked`; also for an argument that differs from the run to be resumed
    """
    flags = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    flags.add_argument("--resume", default="")
    flags.add_argument("--from-run", "--from_run", default="")
    given, _ = flags.parse_known_args(argv)
    if given.resume and given.from_run:
        raise UserError("--resume continues a run, --from-run starts a new one: use one of them")
    script = sys.modules[args_class.__module__]
    saved = None
    if given.resume or given.from_run:
        folder = os.path.expanduser(given.resume or given.from_run)
        check_made_by(script, folder)
        args_class = load_script(folder).Args if given.resume else args_class
        saved = dataclasses.replace(read_args(folder, args_class), distributed=False, **NOWHERE)
    header = "\n\n".join((script.__doc__ or "").split("\n\n")[:2])
    args = read_flags(args_class, argv, header, saved)
    set_up(args)
    args = args.checked()
    if given.resume:
        check_same(args, saved)
    return args


def check_made_by(script: ModuleType, folder: str) -> None:
    """Raises UserError for a run of another script."""
    name, made_by = Path(script.__file__).stem, read_about(folder)["script"]
    if made_by != name:
        raise UserError(f"{folder} was made by {made_by}.py: use that script")


def read_args(folder: str | Path, args_class: type[RunArgs]) -> RunArgs:
    """The arguments a run was started with. Raises UserError for one that its script does not have."""
    about = read_about(folder)
    unknown = about["args"].keys() - {field.name for field in dataclasses.fields(args_class)}
    if unknown:
        raise UserError(f"{folder} was started with {flag(min(unknown))}, which {about['script']}.py does not have")
    return args_class(**about["args"])


def check_same(args: RunArgs, saved: RunArgs) -> None:
    """Raises UserError for arguments that cannot change when a run is resumed."""
    saved = dataclasses.replace(saved, exp_name=saved.exp_name or script_name(saved))
    # --save-every keeps checkpoints at multiples of the log interval: with another interval, it would remove them
    shifted = args.save_every and args.log_interval != saved.log_interval
    may_differ = set(MAY_DIFFER) - ({"log_every"} if shifted else set())
    names = [field.name for field in dataclasses.fields(args) if field.name not in may_differ]
    differing = [name for name in names if getattr(args, name) != getattr(saved, name)]
    if differing:
        was = ", ".join(f"{flag(name)} {getattr(saved, name)}" for name in differing)
        raise UserError(f"{args.resume} was started with {was}: this cannot change on resuming, leave it out")


def set_up(args: Any) -> None:
    """What must happen before JAX is used: joins the other hosts and configures the compiler."""
    where = {name: getattr(args, name) for name in NOWHERE}
    given = [name for name in where if where[name] != NOWHERE[name]]
    if given and not (args.distributed and len(given) == len(where)):
        raise UserError(f"{flag(given[0])}: give --distributed and {', '.join(map(flag, where))} together")
    host, _, port = args.coordinator_address.rpartition(":")
    if given and not (host and port.isdigit()):
        raise UserError(f"--coordinator-address {args.coordinator_address}: write HOST:PORT")
    if given and args.num_processes < 1:
        raise UserError(f"--num-processes {args.num_processes}: use 1 or more")
    if given and not 0 <= args.process_id < args.num_processes:
        raise UserError(f"--process-id {args.process_id}: use a number from 0 to {args.num_processes - 1}")
    if args.compile_cache:
        check_folder(args.compile_cache)
        jax.config.update("jax_compilation_cache_dir", args.compile_cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    if args.track:
        check_tracking()
    if args.distributed:
        try:
            hosts.join(**where)
        except (ValueError, RuntimeError) as error:
            raise UserError(f"--distributed: {str(error).splitlines()[0]}") from None


def check_folder(name: str) -> None:
    """Raises UserError if nothing can be written to the folder of --compile-cache, or if it cannot be made."""
    folder = Path(name).absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not (there.is_dir() and os.access(there, os.W_OK)):
        raise UserError(f"--compile-cache {name}: {there} is not a folder that can be written to")


def quiet_threads() -> None:
    """Only the main thread reports errors: those of orbax and TensorBoard would print stack traces of the same ones."""
    threading.excepthook = lambda _: None
    sys.unraisablehook = lambda _: None
    logging.getLogger("absl").addFilter(lambda record: record.levelno > logging.ERROR)
