"""Plays random actions in one environment of whichever popgym_arcade this interpreter has, for published_package.py.

Needs only JAX and popgym_arcade, because it also runs where the published package is installed. Reads lines: the first
is JSON with `env_id`, `partial_obs` and `num_envs`; every other line asks for one measurement of that many seconds.
Answers each with a line of JSON: the package's file and the seconds of the first call, then frames per second.
"""

import json
import sys
import time

import jax
import jax.numpy as jnp

import popgym_arcade

NUM_ACTIONS = 5
STEPS = 8  # of each environment in one call; short, because some games of the published package draw 100 frames/s


def make_rollout(env, params, num_envs: int):
    """A jitted (key, state, frames[num_envs, ...]) -> the same, STEPS random steps with auto-resets later.

    The barrier ties the frames of a step to the states from which the next step starts, as in throughput.py. Otherwise
    XLA could leave out frames that the next step replaces.
    """
    step = jax.vmap(env.step, in_axes=(0, 0, 0, None))

    def body(carry, _):
        key, state, _ = carry
        key, action_key, step_key = jax.random.split(key, 3)
        action = jax.random.randint(action_key, (num_envs,), 0, NUM_ACTIONS)
        frames, state, *_ = step(jax.random.split(step_key, num_envs), state, action, params)
        return (key, *jax.lax.optimization_barrier((state, frames))), None

    return jax.jit(lambda *carry: jax.lax.scan(body, carry, length=STEPS)[0], donate_argnums=(1, 2))


def answer(**values) -> None:
    """Prints one line of JSON."""
    print(json.dumps(values), flush=True)


def main() -> None:
    """Compiles the environment of the first line, then measures once per further line."""
    asked = json.loads(sys.stdin.readline())
    num_envs = asked["num_envs"]
    env, params = popgym_arcade.make(asked["env_id"], partial_obs=asked["partial_obs"], obs_size=128)
    reset_key, key = jax.random.split(jax.random.key(0))
    start = time.perf_counter()
    frames, state = jax.jit(jax.vmap(env.reset, in_axes=(0, None)))(jax.random.split(reset_key, num_envs), params)
    rollout = make_rollout(env, params, num_envs)
    key, state, frames = jax.block_until_ready(rollout(key, state, frames))
    assert frames.shape == (num_envs, 128, 128, 3) and frames.dtype == jnp.uint8, (frames.shape, frames.dtype)
    answer(file=popgym_arcade.__file__, first_call_seconds=time.perf_counter() - start)
    for line in sys.stdin:
        start, calls = time.perf_counter(), 0
        while calls == 0 or time.perf_counter() - start < float(line):
            key, state, frames = jax.block_until_ready(rollout(key, state, frames))
            calls += 1
        answer(frames_per_second=calls * STEPS * num_envs / (time.perf_counter() - start))


if __name__ == "__main__":
    main()
