"""One measurement of `training_speed.py` in its own process, with the functions of the training script.

    python benchmark/training_parts.py --what parts --script pqn_rnn --flags="--env-id CartPoleEasy --hidden-size 128"

The last line is the result as JSON. `parts`: milliseconds of an update and of its parts. `arithmetic`: the measured
matrix rates of the device, and the matrix products of an environment step. `memory`: the bytes that the script expects
to need.
"""

import dataclasses
import functools
import importlib
import json
import math
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params

from popgym_arcade.analysis.agents import params_like
from popgym_arcade.baselines.environment import make_env
from popgym_arcade.baselines.running.command_line import parse_args
from popgym_arcade.baselines.running.flags import read_flags
from popgym_arcade.baselines.running.memory_use import PROCESS_BYTES, memory_needed
from popgym_arcade.baselines.running.metrics import repeat

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # for the scripts

MOST_MINIBATCHES = 4  # to time; the others of an update are assumed to take as long
MATRIX_SIZES = {"cpu": (512, 1024, 2048), "gpu": (2048, 4096, 8192, 16384)}


@dataclass(frozen=True)
class Args:
    what: str
    """parts, arithmetic (both for pqn_rnn and pqn_mlp) or memory (for any training script)"""
    script: str = "pqn_rnn"
    """training script"""
    flags: str = ""
    """flags of the script"""
    repeats: int = 5
    """timed calls of each program, after one that is not timed; the median counts (for matrix products, the best)"""
    matrix_sizes: tuple[int, ...] = ()
    """sides of the square matrices whose product is timed; none: sizes that suit the device"""


def seconds_of(function, repeats: int) -> list[float]:
    """Seconds of each of several calls of `function()`, after one that is not timed."""
    jax.block_until_ready(function())
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        jax.block_until_ready(function())
        seconds.append(time.perf_counter() - began)
    return seconds


def milliseconds(function, *inputs, repeats: int) -> float:
    """Median milliseconds of a call of the compiled `function(*inputs)`."""
    compiled = jax.jit(function).lower(*inputs).compile()
    return 1e3 * float(np.median(seconds_of(lambda: compiled(*inputs), repeats)))


def has_memory(args) -> bool:
    """Whether a training script's arguments choose a memory."""
    return "memory" in {field.name for field in dataclasses.fields(args)}


def mean_square(output) -> jax.Array:
    """A loss of the whole output, which needs the same gradients as the script's own."""
    return sum(jnp.square(leaf).mean() for leaf in jax.tree.leaves(output))


# --------------------------------------------------------------------------------------------------------------- parts


@dataclass(frozen=True)
class Played:
    """A rollout of T steps of E environments, and what the network reads from it."""

    states: object  # environments after each step, [T, E]
    inputs: tuple  # obs, prev_action, start [T, E, ...]; the latter two are None without memory
    actions: jax.Array  # [T, E]


def play(module, args, state) -> Played:
    """One rollout with random parameters, so that real frames are timed."""
    _, _, act = module.make_actor(args)

    @jax.jit
    def rollout(params, actor):
        def step(actor, _):
            before = actor
            actor, transition, _ = act(params, actor, 1.0)
            inputs = (before.prev_action, before.start) if has_memory(args) else (None, None)
            return actor, (actor.env_state, (before.obs, *inputs), transition.action)

        return jax.lax.scan(step, actor, length=args.num_steps)[1]

    return Played(*rollout(state.params, state.actor))


def step_all(module, args, key, env_state, actions):
    """Steps the environments without drawing them: nothing uses the frames, so XLA does not compute them."""
    env, env_params = make_env(args)

    def step(env_state, now):
        key, action = now
        keys = jax.random.split(key, len(action))
        _, env_state, reward, terminated, truncated, _ = jax.vmap(env.step, in_axes=(0, 0, 0, None))(
            keys, env_state, action, env_params
        )
        return env_state, (reward, terminated, truncated)

    return jax.lax.scan(step, env_state, (jax.random.split(key, len(actions)), actions))


def draw_all(module, args, states):
    """The frames [T, E, ...] of the states [T, E]."""
    env, _ = make_env(args)
    return jax.lax.map(jax.vmap(env.get_obs), states)


def read_all(module, network, params, carry, inputs):
    """The network over a rollout step by step, as in play."""

    def step(carry, now):
        obs, prev_action, start = jax.tree.map(lambda x: x[None], now)
        return module.forward(network, params, carry, obs, prev_action, start)

    return jax.lax.scan(step, carry, inputs)


def in_minibatches(args, tree, count: int):
    """The first `count` minibatches of leaves [T, E, ...], as [count, steps, sequences, ...]."""
    steps, sequences = args.minibatch_shape

    def split(x):
        if not has_memory(args):
            return x.reshape(-1, *x.shape[2:])[: count * sequences].reshape(count, 1, sequences, *x.shape[2:])
        x = x[:, : count * sequences].reshape(steps, count, sequences, *x.shape[2:])
        return x.swapaxes(0, 1)

    return jax.tree.map(split, tree)


def forward_all(function, weights, minibatches):
    """The losses `function(weights, minibatch)` of minibatches on a leading axis, one after the other."""
    return jax.lax.map(functools.partial(function, weights), minibatches)


def gradients_of_all(function, weights, minibatches):
    """The sum of the gradients with respect to `weights`, minibatch after minibatch."""

    def step(total, minibatch):
        return jax.tree.map(jnp.add, total, jax.grad(function)(weights, minibatch)), None

    return jax.lax.scan(step, jax.tree.map(jnp.zeros_like, weights), minibatches)[0]


def time_parts(module, args, repeats: int) -> dict[str, float]:
    """Milliseconds of an update and of its parts, each compiled alone; "memory" is part of forward and backward."""
    network, _, _ = module.make_actor(args)
    init, update = module.make_train(args)
    key = jax.random.key(args.seed)
    timed = functools.partial(milliseconds, repeats=repeats)
    state = jax.jit(init)(key)
    played = play(module, args, state)

    _, sequences = args.minibatch_shape
    count = min(args.num_minibatches, MOST_MINIBATCHES)
    # an update has this many times the timed minibatches
    times = args.update_epochs * args.num_minibatches / count
    minibatches = in_minibatches(args, played.inputs, count)

    def loss(params, inputs):
        return mean_square(module.forward(network, params, module.initial_carry(network, sequences), *inputs)[1])

    found = {
        "environment step": timed(
            functools.partial(step_all, module, args), key, state.actor.env_state, played.actions
        ),
        "drawing": timed(functools.partial(draw_all, module, args), played.states),
        "forward, playing": timed(
            functools.partial(read_all, module, network),
            state.params,
            module.initial_carry(network, args.num_envs),
            played.inputs,
        ),
        "forward, learning": times * timed(functools.partial(forward_all, loss), state.params, minibatches),
    }
    both = times * timed(functools.partial(gradients_of_all, loss), state.params, minibatches)
    found["backward"] = both - found["forward, learning"]
    if has_memory(args):
        found["memory"] = time_memory(network, state.params, played.inputs[2], minibatches[2], times, repeats)
    del played, minibatches  # they can be gigabytes
    found["update"] = time_updates(repeat(update), state, repeats)
    found["rest"] = found["update"] - sum(found[name] for name in found if name not in ("update", "memory"))
    return found


def time_memory(network, params, start, starts, times: float, repeats: int) -> float:
    """Milliseconds of the memory alone in an update: a rollout step by step, and its part of the gradients.

    `start` [T, E] are a rollout's flags, and `starts` [count, T, B] those of the minibatches. An update has `times` as
    many minibatches.
    """
    memory, weights = network.bind(params).remember.unbind()

    def loss(inputs, minibatch):
        weights, nudge = inputs  # for the gradient with respect to the features, which the encoder needs
        x, start = minibatch
        return mean_square(memory.apply(weights, memory.initial_carry(start.shape[1]), x + nudge, start)[1])

    def remember_all(weights, carry, x, start):
        step = lambda carry, now: memory.apply(weights, carry, now[0][None], now[1][None])
        return jax.lax.scan(step, carry, (x, start))

    def features(shape):
        return jax.random.normal(jax.random.key(1), (*shape, memory.input_size))

    carry = memory.initial_carry(start.shape[1])
    playing = milliseconds(remember_all, weights, carry, features(start.shape), start, repeats=repeats)
    learned = (weights, jnp.zeros((*starts.shape[1:], memory.input_size)))
    learning = functools.partial(gradients_of_all, loss)
    return playing + times * milliseconds(learning, learned, (features(starts.shape), starts), repeats=repeats)


def time_updates(train_chunk, state, repeats: int) -> float:
    """Median milliseconds of a whole update as in training, which donates the state's memory."""
    program = jax.jit(train_chunk, donate_argnums=0).lower(state, np.int32(1)).compile()
    now = state

    def update():
        nonlocal now
        now, metrics = program(now, np.int32(1))
        return metrics

    return 1e3 * float(np.median(seconds_of(update, repeats)))


# ---------------------------------------------------------------------------------------------------------- arithmetic


def matrix_flops(function, *inputs) -> Counter:
    """Floating point operations of the matrix products and convolutions in `function(*inputs)`, by their dtype.

    Counted in the jaxpr; loops count as often as they run. A complex product is four real ones. Elementwise operations
    do not count, because memory limits them, not arithmetic.
    """
    return count_flops(jax.make_jaxpr(function)(*inputs).jaxpr)


def count_flops(jaxpr) -> Counter:
    """See `matrix_flops`. Of a branch, the more expensive side counts; a loop of unknown length counts once."""
    total = Counter()
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in ("dot_general", "conv_general_dilated"):
            dtype = eqn.invars[0].aval.dtype
            is_complex = jnp.issubdtype(dtype, jnp.complexfloating)
            name = "float32" if is_complex else str(dtype)
            total[name] += (4 if is_complex else 1) * product_flops(eqn)
            continue
        times = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        inner = [count_flops(sub) for sub in jaxprs_in_params(eqn.params)]
        if eqn.primitive.name == "cond" and inner:
            inner = [max(inner, key=lambda counted: counted.total())]
        for counted in inner:
            total.update({name: times * flops for name, flops in counted.items()})
    return total


def product_flops(eqn) -> int:
    """Multiplications and additions of one matrix product or convolution."""
    left, right = (var.aval for var in eqn.invars)
    size = eqn.outvars[0].aval.size
    if eqn.primitive.name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return 2 * size * math.prod(left.shape[axis] for axis in contracted)
    out_axis = eqn.params["dimension_numbers"].rhs_spec[0]
    dilation = math.prod(eqn.params["lhs_dilation"])  # the zeros between do not count
    return 2 * size * right.size // right.shape[out_axis] // dilation


def flops_of_step(module, args) -> tuple[Counter, Counter]:
    """FLOP of an environment step: of the forward pass, and in total, including all epochs."""
    env, env_params = make_env(args)
    space = env.observation_space(env_params)
    network, _, _ = module.make_actor(args)
    params = params_like(args)

    def inputs(steps, batch):
        obs = jnp.zeros((steps, batch, *space.shape), space.dtype)
        if not has_memory(args):
            return (), obs
        start = jnp.zeros((steps, batch), bool)
        return module.initial_carry(network, batch), obs, start.astype(jnp.int32), start

    def loss(params, *inputs):
        return mean_square(module.forward(network, params, *inputs)[1])

    steps, batch = args.minibatch_shape
    forward = matrix_flops(loss, params, *inputs(1, 8))
    forward = Counter({name: flops / 8 for name, flops in forward.items()})
    batch = min(batch, max(1, 64 // steps))  # FLOP are linear in the batch, and a small one saves memory
    learning = matrix_flops(jax.grad(loss), params, *inputs(steps, batch))
    total = Counter({name: args.update_epochs * flops / (steps * batch) for name, flops in learning.items()})
    # playing, including the value of a rollout's last step
    total.update({name: flops * (1 + 1 / args.num_steps) for name, flops in forward.items()})
    return forward, total


def matrix_rate(dtype: str, sizes: tuple[int, ...], repeats: int) -> float:
    """Floating point operations per second of the fastest square matrix product, as JAX computes it."""

    def rate(size: int) -> float:
        left, right = (jax.random.normal(jax.random.key(i), (size, size), jnp.dtype(dtype)) for i in range(2))
        multiply = jax.jit(jnp.matmul).lower(left, right).compile()
        return 2 * size**3 / min(seconds_of(lambda: multiply(left, right), repeats))

    return max(rate(size) for size in sizes)


def find_arithmetic(module, args, sizes: tuple[int, ...], repeats: int) -> dict:
    """Matrix rates by dtype in FLOP/s, FLOP of a step, and the steps per second that these allow."""
    sizes = sizes or MATRIX_SIZES["cpu" if jax.default_backend() == "cpu" else "gpu"]
    forward, total = flops_of_step(module, args)
    rates = {dtype: matrix_rate(dtype, sizes, repeats) for dtype in total}
    return {
        "rates": rates,
        "forward_flop": forward.total(),
        "step_flop": total.total(),
        "update_size": args.update_size,
        "limit": 1 / sum(flops / rates[dtype] for dtype, flops in total.items()),
    }


# -------------------------------------------------------------------------------------------------------------- memory


def expected_memory(module, args) -> float:
    """Bytes that a run expects to need on a device, before it compiles; on a CPU, including its process."""
    process = PROCESS_BYTES if jax.default_backend() == "cpu" else 0
    return sum(memory_needed(args, module).values()) + process


def main(args: Args) -> dict:
    """The measurement `args.what`. Raises ValueError for an unknown one."""
    module = importlib.import_module(args.script)
    parsed = parse_args(module.Args, args.flags.split())
    if args.what == "parts":
        return time_parts(module, parsed, args.repeats)
    if args.what == "arithmetic":
        return find_arithmetic(module, parsed, args.matrix_sizes, args.repeats)
    if args.what == "memory":
        return {"bytes": expected_memory(module, parsed)}
    raise ValueError(f"--what {args.what!r} is unknown: use parts, arithmetic or memory")


if __name__ == "__main__":
    try:
        print(json.dumps(main(read_flags(Args, header=__doc__))))
    except Exception as error:  # any error: the calling study shows one line
        sys.exit(f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
