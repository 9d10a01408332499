"""Memories: step by step as in a sequence, resets, independent weights; MinGRU against a loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scripts import usually

from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.networks.memory import MEMORIES, Memory, MinGRU

COMMON = "MinGRU GRU Attention".split()


@pytest.mark.parametrize("name", usually(*COMMON, of=MEMORIES))
def test_memory_step_by_step_equals_the_sequence(name):
    steps, batch, size = 12, 3, 5
    memory = Memory(MEMORIES[name], input_size=size, hidden_size=16, output_size=256, num_layers=2, window=steps)
    x = jax.random.normal(jax.random.key(0), (steps, batch, size))
    start = jnp.zeros((steps, batch), bool).at[0].set(True).at[4, 0].set(True).at[5:7, 1].set(True)
    carry = memory.initial_carry(batch)
    step = jax.jit(memory.apply)
    params = jax.jit(memory.init)(jax.random.key(1), carry, x, start)
    last, sequence = step(params, carry, x, start)
    x, start = np.asarray(x), np.asarray(start)  # each slice of a jax.Array is a program
    outputs = []
    for t in range(steps):
        carry, y = step(params, carry, x[t : t + 1], start[t : t + 1])
        outputs.append(np.asarray(y)[0])
    np.testing.assert_allclose(np.stack(outputs), sequence, atol=2e-4)
    # float counterparts of both carries give the same continuation
    one, other = (step(params, h, x[:1], np.zeros((1, batch), bool))[1] for h in (last, carry))
    np.testing.assert_allclose(one, other, atol=2e-4)
    # what came before a start flag does not matter
    late, more = start[4:].copy(), x.copy()
    late[0] = True
    more[0] += 3.0
    _, fresh = step(params, memory.initial_carry(batch), x[4:], late)
    sequence = np.asarray(sequence)
    np.testing.assert_allclose(np.asarray(fresh)[:, 0], sequence[4:, 0], atol=2e-4)
    # and what came before without one does, except for the model that remembers nothing
    _, altered = step(params, memory.initial_carry(batch), more, start)
    remembers = bool(np.abs(np.asarray(altered)[1:4] - sequence[1:4]).max() > 1e-4)
    assert remembers == (name != "MLP")


@pytest.mark.parametrize("name", ["MinGRU", "GRU", "LRU"])
def test_no_two_weights_of_a_memory_come_from_one_key(name):
    memory = Memory(MEMORIES[name], input_size=16, hidden_size=16, output_size=256, num_layers=2, window=4)
    args = memory.initial_carry(1), jnp.zeros((1, 1, 16)), jnp.ones((1, 1), bool)
    weights = memory.init(jax.random.key(0), *args)["params"]["weights"]
    matrices = [np.asarray(w).real.ravel() for w in weights.values() if w.ndim == 2 and w.size == 256]
    assert len(matrices) > 4
    for i, one in enumerate(matrices):
        for other in matrices[:i]:
            assert abs(np.corrcoef(one, other)[0, 1]) < 0.3


def test_min_gru_equals_a_loop():
    layer = MinGRU(8, jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (10, 8))
    start = jnp.zeros(10, bool).at[6].set(True)
    _, got = layer(layer.initialize_carry(), (x, start))
    h = np.zeros(8)
    for t in range(10):
        z = 1 / (1 + np.exp(-(np.asarray(layer.gate.weight) @ x[t] + layer.gate.bias)))
        candidate = np.asarray(layer.candidate.weight) @ x[t] + layer.candidate.bias
        h = (1 - z) * (h * (not start[t])) + z * candidate
        np.testing.assert_allclose(got[t], h, atol=1e-5)


def test_a_memory_with_an_array_of_integers_is_refused_in_one_line():
    """Its arrays are learned, and integers cannot be."""

    class Ordered(MinGRU):
        order: jax.Array

        def __init__(self, size, key):
            super().__init__(size, key)
            self.order = jnp.arange(size)

    memory = Memory(lambda size, window, key: Ordered(size, key), 3, 4, 2, num_layers=1, window=8)
    with pytest.raises(UserError, match="the memory's .*order is int32: its arrays are learned, so use floats"):
        memory.initial_carry(batch=1)
