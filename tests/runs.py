"""Small runs of pqn_mlp.py, the cheapest script, for the tests of what every run promises; and command lines."""

import contextlib
import csv
import io
import runpy
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import jax
import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import pqn_mlp
from popgym_arcade.baselines.devices.mesh import leaf_name
from popgym_arcade.baselines.running.checkpoints import find_checkpoint, named_arrays, restore
from popgym_arcade.baselines.running.command_line import parse_args, read_args
from popgym_arcade.baselines.running.evaluation import make_keys
from popgym_arcade.baselines.running.programs import abstract_state
from popgym_arcade.baselines.scripts import load_script
from popgym_arcade.worlds import LIBRARIES

ROOT = Path(__file__).parents[1]
FLAGS = "--env-id CartPole-v1 --num-envs 4 --num-steps 8 --num-minibatches 2 --hidden-size 16 --total-timesteps 256"
FLAGS += " --log-every 64 --eval-every 128 --checkpoint-every 64 --eval-episodes 3"  # those of `scripts.small`


def parsed(*argv, script=pqn_mlp):
    return parse_args(script.Args, [str(word) for word in argv])


def resumed(run, *flags):
    """Resumes a run in this process, as `--resume` does."""
    args = parsed("--resume", run, *flags, script=load_script(run))
    return sys.modules[type(args).__module__].main(args)


def command(*flags, script=ROOT / "pqn_mlp.py", by=(), **options):
    """A script in a process of its own."""
    line = [*by, sys.executable, str(script), *map(str, flags)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def called(path, *flags):
    """What a script does on the command line, but in this process, which has imported its libraries already."""
    line = [str(path), *map(str, flags)]
    out, err, code = io.StringIO(), io.StringIO(), 0
    redirected = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    with mock.patch.object(sys, "argv", line), redirected[0], redirected[1]:
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as ended:
            code = ended.code
    return subprocess.CompletedProcess(line, code, out.getvalue(), err.getvalue())


def missing_libraries(flags):
    """The libraries of LIBRARY/ID among the flags that are not installed here."""
    named = {word.partition("/")[0] for word in flags if "/" in word} & set(LIBRARIES)
    return {library for library in named if find_spec(LIBRARIES[library][0]) is None}


def only(folder):
    (path,) = folder.iterdir()
    return path


def saved_steps(run):
    """Those of complete checkpoints."""
    return sorted(int(path.parent.name) for path in run.glob("checkpoints/*/sha256.json"))


def restored(run, step=None):
    """The last intact checkpoint of a run: its step and its state."""
    script = load_script(run)
    args = read_args(run, script.Args)
    step = find_checkpoint(run, step)
    return step, restore(run, step, abstract_state(args, script.make_train(args)[0], make_keys(args)[0]))


def loaded_params(run):
    """The parameters of the last intact checkpoint."""
    return restored(run)[1].params


def rows(run):
    """Those of eval.csv, without the seconds they took."""
    with (run / "eval.csv").open() as file:
        return [{name: x for name, x in row.items() if name != "wall_seconds"} for row in csv.DictReader(file)]


def scalars(folder):
    """The points of every TensorBoard curve."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}


def assert_equal(one, other, atol=0.0):
    """The leaves of two trees."""
    for (path, x), (_, y) in zip(*map(jax.tree_util.tree_leaves_with_path, (one, other)), strict=True):
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = jax.random.key_data(x), jax.random.key_data(y)
        np.testing.assert_allclose(x, y, rtol=0, atol=atol, err_msg=leaf_name(path))


def assert_end_alike(one, other):
    """Every array of the last checkpoint, and every row of eval.csv."""
    (step, state), (other_step, other_state) = map(restored, (one, other))
    assert step == other_step and rows(one) == rows(other) and len(rows(one)) > 1
    arrays, others = named_arrays(state), named_arrays(other_state)
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name], err_msg=name)
