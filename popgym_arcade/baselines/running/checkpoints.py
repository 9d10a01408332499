"""Checkpoints of a run: complete, written atomically, with digests; restored only into a state that fits.

`checkpoints/{step}/` is valid once it has its SHA-256 digests, which are written last.
"""

import hashlib
import json
import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, LatestN, PreservationPolicy

from popgym_arcade.baselines.devices import hosts
from popgym_arcade.baselines.devices.mesh import leaf_name
from popgym_arcade.baselines.environment import make_env, runs_on_host
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.running.files import whole_file
from popgym_arcade.baselines.scripts import read_about

OTHER_GENERATOR = "drew its random numbers with JAX's generator"


@dataclass
class FirstOfEach(PreservationPolicy):
    """Keeps the first checkpoint at or after each multiple of `every` steps.

    Only those at multiples of `interval` count: otherwise, one left by a stop in between could replace the regular one.
    """

    every: int
    interval: int

    def should_preserve(self, checkpoints, *, context):
        steps = [checkpoint.step for checkpoint in checkpoints]  # ascending
        parts = [0 if step % self.interval else step // self.every for step in steps]
        return [part > 0 and part not in parts[:i] for i, part in enumerate(parts)]


def manager(folder: str | Path, args: Any = None) -> ocp.CheckpointManager:
    """orbax's manager of a run's checkpoints. Given arguments, it can also write, and removes unfinished checkpoints
    and all but the last three and those of `--save-every`."""
    keep = [LatestN(3)]
    if args is not None and args.save_every:
        keep.append(FirstOfEach(args.save_every, args.log_interval))
    options = ocp.CheckpointManagerOptions(
        preservation_policy=AnyPreservationPolicy(keep),
        enable_async_checkpointing=False,
        cleanup_tmp_directories=args is not None,
    )
    path = Path(folder).resolve() / "checkpoints"
    return ocp.CheckpointManager(path, options=options, item_handlers=ocp.PyTreeCheckpointHandler())


def save_checkpoint(folder: Path, args: Any, step: int, state: Any) -> None:
    """Writes `checkpoints/{step}/`."""
    with manager(folder, args) as checkpoints:
        checkpoints.save(step, args=ocp.args.PyTreeSave(named_arrays(state)), force=True)
    checkpoint = folder / "checkpoints" / str(step)
    hosts.wait_for_all("the checkpoint is written")
    if jax.process_index() == 0:
        with whole_file(checkpoint / "sha256.json") as draft:
            draft.write_text(json.dumps(file_digests(checkpoint)))


def unsaved_fields(args: Any, state: Any) -> tuple[str, ...]:
    """The fields of a state that depend on environments outside JAX, which cannot be saved. A resumed run begins new
    episodes, with an empty replay buffer: it could not tell where the old ones broke off."""
    if not any(runs_on_host(make_env(task)[0]) for task in args.tasks):
        return ()
    return tuple(name for name in ("actor", "replay") if hasattr(state, name))


def named_arrays(state: Any) -> dict[str, Any]:
    """The state as flat, named arrays: random keys as their data, and no empty arrays, which orbax rejects."""
    plain = jax.tree.map(lambda x: jax.random.key_data(x) if is_key(x) else x, state)
    plain = plain if jax.process_count() > 1 else jax.device_get(plain)  # with several hosts, each writes its part
    return {leaf_name(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(plain)[0] if leaf.size}


def is_key(x: Any) -> bool:
    """Whether an array, or a shape that stands for one, holds random keys."""
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def file_digests(checkpoint: Path) -> dict[str, str]:
    """SHA-256 of every file of a checkpoint, by its path in the folder."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file() and not path.name.startswith("sha256."))
    return {str(path.relative_to(checkpoint)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def is_intact(checkpoint: Path) -> bool:
    """Whether a checkpoint is complete and unaltered."""
    try:
        return json.loads((checkpoint / "sha256.json").read_text()) == file_digests(checkpoint)
    except (OSError, ValueError):
        return False


def find_checkpoint(folder: str | Path, step: int | None = None) -> int:
    """The step of a run's last intact checkpoint, or `step` if that one is intact. Raises UserError without one."""
    checkpoints = [path for path in Path(folder, "checkpoints").glob("*") if path.name.isdigit()]
    for checkpoint in sorted(checkpoints, key=lambda path: int(path.name), reverse=True):
        if step not in (None, int(checkpoint.name)):
            continue
        if is_intact(checkpoint):
            return int(checkpoint.name)
        print(f"checkpoint {checkpoint} is incomplete or damaged: skipping it", file=sys.stderr)
    raise UserError(f"{folder} has no intact checkpoint" + ("" if step is None else f" of step {step}"))


def saved_steps(folder: str | Path) -> list[int]:
    """The steps of a run's intact checkpoints, in order."""
    checkpoints = [path for path in Path(folder, "checkpoints").glob("*") if path.name.isdigit() and is_intact(path)]
    return sorted(int(path.name) for path in checkpoints)


def set_aside_later(folder: str | Path, step: int) -> None:
    """Renames the checkpoints after `step`, which are damaged, so that they are kept when new ones take their place."""
    for checkpoint in Path(folder, "checkpoints").glob("*"):
        if checkpoint.name.isdigit() and int(checkpoint.name) > step:
            name = f"damaged-{checkpoint.name}-{time.strftime('%Y%m%d-%H%M%S')}"
            checkpoint.rename(checkpoint.with_name(name))


def saved_fields(folder: str | Path, step: int) -> set[str]:
    """The fields of the state that a checkpoint holds, e.g. "params"."""
    with manager(folder) as checkpoints:
        return {name.partition(".")[0] for name in _metadata(checkpoints, folder, step)}


def _metadata(checkpoints: ocp.CheckpointManager, folder: str | Path, step: int) -> dict[str, Any]:
    """What a checkpoint holds, by name."""
    about = checkpoints.item_metadata(step)
    if about is None:  # its digests are right, so it is complete, but this orbax cannot read it
        raise UserError(f"{folder}: another version of orbax wrote checkpoint {step}: use the one in its args.json")
    return about.tree


def check_generator(folder: str | Path, template: Any) -> None:
    """Raises UserError if a template has random keys, and the run used another of JAX's generators."""
    if not any(map(is_key, jax.tree.leaves(template))):
        return
    saved, now = read_about(folder).get("random_generator"), str(jax.config.jax_default_prng_impl)
    if saved not in (None, now):
        raise UserError(f"{folder} {OTHER_GENERATOR} {saved}, not {now}: set JAX_DEFAULT_PRNG_IMPL={saved}")


def check_key(folder: str | Path, data: Any, like: Any) -> None:
    """Raises UserError if the data of a key has another size. For runs that did not record their generator."""
    size, wanted = data.shape[-1], jax.eval_shape(jax.random.key_data, like).shape[-1]
    if size != wanted:
        saved = "threefry2x32" if size == 2 else "rbg or unsafe_rbg"
        raise UserError(f"{folder} {OTHER_GENERATOR} {saved}: set JAX_DEFAULT_PRNG_IMPL to that")


def restore(folder: str | Path, step: int, template: Any) -> Any:
    """The arrays of a checkpoint in the places of `template`'s leaves, with their shapes, dtypes and shardings.

    float32 arrays may be stored as float16 (the agents in `agents/` are, see benchmark/ship_agent.py).

    Raises:
        UserError: naming the first leaf that is missing, left over, or of another shape or dtype.
    """
    check_generator(folder, template)
    with manager(folder) as checkpoints:
        plain = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in _metadata(checkpoints, folder, step)}
        arrays = checkpoints.restore(step, args=ocp.args.PyTreeRestore(restore_args=plain))
    misfit = f"{folder} does not fit its script"

    def find(path, like):
        if not math.prod(like.shape) and not is_key(like):
            return jax.device_put(np.zeros(like.shape, like.dtype), like.sharding)
        name = leaf_name(path)
        array = arrays.get(name)
        if array is not None and is_key(like):
            check_key(folder, array, like)
            array = jax.random.wrap_key_data(jax.device_put(array, like.sharding))
        if array is not None and (array.dtype, like.dtype) == (np.float16, np.float32):
            array = array.astype(np.float32)
        if array is None or (array.shape, array.dtype) != (like.shape, like.dtype):
            saved = "missing" if array is None else f"{array.dtype}{list(array.shape)}"
            raise UserError(
                f"{misfit}: {name} is {saved} in the checkpoint, {like.dtype}{list(like.shape)} in the script"
            )
        return jax.device_put(array, like.sharding)

    found = jax.tree_util.tree_map_with_path(find, template)
    expected = {leaf_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(template)[0]}
    fields = {name.partition(".")[0] for name in expected}
    left_over = [name for name in arrays if name.partition(".")[0] in fields and name not in expected]
    if left_over:
        raise UserError(f"{misfit}: {left_over[0]} of the checkpoint is not in the script")
    return found
