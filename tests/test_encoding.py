"""Encoders: pixels of any side, bytes and floats, vectors; frames relative to the mean of the first ones."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scripts import PIXEL, arcade, programs, trained, usually

from popgym_arcade.baselines.environment import is_pixels
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.networks.encoding import PAPER_LAYERS, merge, of_weights, patches
from popgym_arcade.baselines.running.evaluation import make_keys
from pqn_rnn import Encoder


@pytest.mark.parametrize("side", [64, 84, 128, 256])
def test_encoders_read_pixels_of_any_side(side):
    obs = jax.random.randint(jax.random.key(0), (2, side, side, 3), 0, 256).astype(jnp.uint8)
    kinds = ["patch"] + ["paper"] * ((side, side) in PAPER_LAYERS)
    for kind in kinds:
        encoder = Encoder(kind, jnp.float32)
        features, params = encoder.init_with_output(jax.random.key(1), obs)
        assert features.shape == (2, {"patch": 256, "paper": 512}[kind]) and features.dtype == jnp.float32
        if kind == "patch":  # reads every corner; the paper's VALID convolutions leave out a few pixels at two edges
            for y, x in ((0, 0), (0, side - 1), (side - 1, 0), (side - 1, side - 1)):
                changed = obs.at[:, y, x].set(255 - obs[:, y, x])
                assert jnp.abs(encoder.apply(params, changed) - features).max() > 0


def test_observations_that_are_not_pixels_are_flattened():
    encoder = Encoder("dense", jnp.float32)
    for obs in (jnp.zeros((2,), jnp.int32), jnp.zeros((2, 10, 10, 4)), jnp.zeros((2, 8, 8, 3), jnp.uint8)):
        assert encoder.init_with_output(jax.random.key(0), obs)[0].shape == (2, 256)
        assert not is_pixels(obs[0])


@pytest.mark.parametrize("kind", ["patch", "paper"])
def test_frames_as_floats_are_read_like_bytes(kind):
    """The analysis scripts differentiate with respect to frames, and so hand them in as float32, 0 to 255."""
    obs = jax.random.randint(jax.random.key(0), (2, 128, 128, 3), 0, 256).astype(jnp.uint8)
    encoder = Encoder(kind, jnp.float32)
    features, params = encoder.init_with_output(jax.random.key(1), obs)
    np.testing.assert_array_equal(encoder.apply(params, obs.astype(jnp.float32)), features)


def test_other_frames_are_refused_by_the_papers_encoder():
    with pytest.raises(UserError, match="--encoder paper reads frames of 128 or 256 px: use --encoder patch"):
        Encoder("paper", jnp.float32).init(jax.random.key(0), jnp.zeros((1, 84, 84, 3), jnp.uint8))


def test_patches_hold_neighbours():
    obs = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3)).astype(np.uint8)
    found = np.asarray(patches(jnp.asarray(obs), jnp.float32)).reshape(2, 16, 16, 2, 2, 3)
    for y, x in ((0, 0), (3, 5), (15, 15)):
        expected = obs[:, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2] / 255
        np.testing.assert_allclose(found[:, y, x], expected, rtol=1e-6)
    assert merge(jnp.zeros((1, 8, 4, 3)), 2).shape == (1, 4, 2, 12)


@pytest.mark.parametrize("side", [84, 128, 256])
def test_patches_of_few_pixels_are_averages(side):
    obs = np.random.default_rng(0).integers(0, 256, (2, side, side, 3)).astype(np.uint8)
    found = np.asarray(patches(jnp.asarray(obs), jnp.float32, pixels=4)).reshape(2, 16, 16, 4, 4, 3)
    area = 2 if side < 256 else 4  # px along a side of what is averaged
    padded = np.zeros((2, 64 * area, 64 * area, 3))
    padded[:, :side, :side] = obs
    for y, x, i, j in ((0, 0, 0, 0), (3, 5, 2, 1), (9, 9, 3, 3), (15, 15, 0, 2)):
        top, left = (4 * y + i) * area, (4 * x + j) * area
        expected = padded[:, top : top + area, left : left + area].mean(axis=(1, 2)) / 255
        np.testing.assert_allclose(found[:, y, x, i, j], expected, atol=1e-6)


def test_what_all_first_frames_show_does_not_matter():
    """The encoder reads frames relative to the mean of those it was initialised with."""
    dim = lambda seed, n: jax.random.randint(jax.random.key(seed), (n, 128, 128, 3), 0, 128).astype(jnp.uint8)
    first, later, background = dim(0, 8), dim(1, 8), dim(3, 1)
    encoder = Encoder("patch", jnp.float32)
    alone, behind = (encoder.init(jax.random.key(2), first + x) for x in (jnp.uint8(0), background))
    np.testing.assert_allclose(
        encoder.apply(behind, later + background), encoder.apply(alone, later), rtol=1e-3, atol=1e-4
    )
    assert jnp.abs(encoder.apply(alone, later + background) - encoder.apply(alone, later)).max() > 0.1


def test_an_optimizer_of_weights_does_not_decay_constants():
    params = {"params": {"kernel": jnp.ones(3)}, "constants": {"mean": jnp.ones(5)}}
    optimizer = of_weights(optax.adamw(0.1, weight_decay=0.5))
    state = optimizer.init(params)
    updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, params), state, params)
    after = optax.apply_updates(params, updates)
    np.testing.assert_allclose(after["params"]["kernel"], 0.95)
    np.testing.assert_array_equal(after["constants"]["mean"], 1)
    assert {x.shape for x in jax.tree.leaves(state)} == {(), (3,)}


@pytest.mark.parametrize("name", usually("pqn_rnn", "impala_popart", of=PIXEL))
def test_training_does_not_change_the_mean_of_the_first_frames(name):
    args = arcade(name)
    before = programs(name, dataclasses.replace(args, seed=0))[0](make_keys(args)[0])
    after, _ = trained(name, args, 2)
    (mean,) = jax.tree.leaves(before.params["constants"])
    frames = patches(before.actor.obs, jnp.float32, pixels=4)
    np.testing.assert_allclose(mean, frames.mean(axis=0, keepdims=True), atol=1e-6)
    np.testing.assert_array_equal(jax.tree.leaves(after.params["constants"])[0], mean)
    assert not np.array_equal(*(jax.tree.leaves(x.params["params"])[0] for x in (before, after)))
