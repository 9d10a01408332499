"""Our own makes of memax's memories equal memax's; their exponential equals SciPy's; no program that can wait."""

import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from memax.equinox.semigroups.spherical import PSpherical
from memax.equinox.semigroups.stack import Stack
from memax.equinox.set_actions.spherical import Spherical
from scripts import usually

from popgym_arcade.baselines.networks import memax_fixes as memories
from popgym_arcade.baselines.networks.memory import MEMORIES, Memory

ROOT = Path(__file__).parent.parent


def skew(size, scale, seed=0):
    a = np.random.default_rng(seed).normal(size=(size, size)) * scale
    return (a - a.T).astype(np.float32)


@pytest.mark.parametrize("scale", [0, 1e-3, 0.1, 1, 10])  # norms of 0 to several hundred
@pytest.mark.parametrize("size", [1, 2, 11, 64])
def test_the_exponential_and_its_gradient_equal_scipys(size, scale):
    a, g = skew(size, scale), np.random.default_rng(1).normal(size=(size, size)).astype(np.float32)
    value, gradient = jax.jit(jax.value_and_grad(lambda a: (memories.expm(a) * g).sum()))(a)
    exact, direction = a.astype(np.float64), g.astype(np.float64)
    tolerance = 1e-6 * max(1, np.abs(a).sum(0).max())
    np.testing.assert_allclose(memories.expm(a), scipy.linalg.expm(exact), atol=tolerance)
    np.testing.assert_allclose(value, (scipy.linalg.expm(exact) * g).sum(), atol=tolerance * size**2)
    expected = scipy.linalg.expm_frechet(exact.T, direction, compute_expm=False)
    np.testing.assert_allclose(gradient, expected, atol=2 * tolerance * np.abs(expected).max())


def test_the_exponential_of_any_matrix():
    a = np.asarray([[0.3, 2.0, 0.0], [-1.0, -4.0, 5.0], [0.1, 0.0, 1.5]], np.float32)
    np.testing.assert_allclose(memories.expm(a), scipy.linalg.expm(a.astype(np.float64)), rtol=1e-5)
    assert not np.isfinite(memories.expm(jnp.full((3, 3), jnp.nan))).any()  # and it ends


def test_a_batch_equals_one_by_one():
    batch = np.stack([skew(8, scale) for scale in (0, 0.01, 1, 5)])  # from none to several squarings
    gradient = jax.grad(lambda a: memories.expm(a)[0].sum())
    for function in (memories.expm, gradient):
        together = jax.jit(jax.vmap(function))(batch)
        np.testing.assert_allclose(together, np.stack([function(a) for a in batch]), atol=1e-5)


@pytest.mark.parametrize(("layer", "size"), [(PSpherical, 4), (Spherical, 16), (Stack, 4)])
def test_the_layers_equal_those_of_memax(layer, size):
    hidden, key = 16, jax.random.key_data(jax.random.key(0))  # raw: memax splits a key more than once
    sizes = (hidden, size) if layer is Stack else (size, hidden)
    ours, theirs = (make(*sizes, key) for make in (getattr(memories, layer.__name__), layer))
    ours = jax.tree.unflatten(jax.tree.structure(ours), jax.tree.leaves(theirs))
    x = 3 * jax.random.normal(jax.random.key(1), (10, hidden)), jnp.zeros(10, bool).at[0].set(True).at[6].set(True)
    run = eqx.filter_jit(lambda layer: layer(layer.initialize_carry(None), x)[1])
    np.testing.assert_allclose(run(ours), run(theirs), atol=1e-5)
    gradient = eqx.filter_jit(eqx.filter_grad(lambda layer: (run(layer) ** 2).sum()))
    for one, other in zip(jax.tree.leaves(gradient(ours)), jax.tree.leaves(gradient(theirs)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", usually("Stack", "Spherical", "PSpherical", "LRU", of=MEMORIES))
def test_no_memory_decomposes_matrices(name):
    """jaxlib's CPU backend can wait for ever when several batches are decomposed at once."""
    memory = Memory(MEMORIES[name], input_size=4, hidden_size=16, output_size=256, num_layers=2, window=3)
    carry, x, start = memory.initial_carry(2), jnp.zeros((3, 2, 4)), jnp.zeros((3, 2), bool)
    params = jax.eval_shape(memory.init, jax.random.key(0), carry, x, start)
    step = jax.grad(lambda params: memory.apply(params, carry, x, start)[1].sum())
    text = jax.jit(step).lower(params).as_text()
    assert "stablehlo.dot_general" in text and "lapack" not in text


def test_several_at_once_end():
    program = """
import jax, jax.numpy as jnp
from popgym_arcade.baselines.networks.memax_fixes import expm
batches = jax.random.normal(jax.random.key(0), (6, 8, 128, 128))
several = jax.jit(lambda batches: [jax.vmap(expm)(batch).sum() for batch in batches])
print(len([x.block_until_ready() for x in several(list(batches))]))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "6", done.stderr
