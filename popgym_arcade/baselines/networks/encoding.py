"""Encoding frames: patches, POPGym Arcade's convolutions, and encoding in pieces to save memory.

Call functions that build flax layers inside a compact module, which then owns their parameters.
Shapes: N frames, h rows, w columns, c channels.
"""

import functools
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.networks.convolution import convolve, keep_bytes

PAPER_LAYERS = {  # frame: (features, kernel, stride, pooling window, pooling stride); POPGym Arcade, arXiv:2503.01450
    (128, 128): ((64, 5, 2, 2, 2), (128, 3, 2, 2, 2), (256, 3, 2, 3, 1), (512, 1, 1, 1, 1)),
    (256, 256): ((64, 7, 2, 2, 2), (128, 3, 2, 2, 2), (256, 3, 2, 2, 2), (512, 3, 2, 1, 1)),
}
PATCHES = 16  # along each side of a frame
PIECES = 8  # into which `in_pieces` splits a batch


def merge(x: jax.Array, side: int) -> jax.Array:
    """[N, h, w, c] -> [N, h / side, w / side, side * side * c]: space to depth, block by block."""
    n, h, w, c = x.shape
    x = x.reshape(n, h // side, side, w // side, side, c).transpose(0, 1, 3, 2, 4, 5)
    return x.reshape(n, h // side, w // side, side * side * c)


def patches(obs: jax.Array, dtype: Any, pixels: int | None = None) -> jax.Array:
    """uint8 [N, h, w, c] -> [N, 16, 16, F] from 0 to 1: 16 x 16 patches whatever the size, padded with black.

    With `pixels`, each patch is averaged down to pixels x pixels, so that even a movement smaller than one of these
    pixels changes the result; F = pixels * pixels * c. Without it, every pixel is kept.
    """
    step = pixels or 1
    patch = step * -(-max(obs.shape[1:3]) // (PATCHES * step))
    rows, columns = (PATCHES * patch - side for side in obs.shape[1:3])
    obs = jnp.pad(obs, ((0, 0), (0, rows), (0, columns), (0, 0)))
    if pixels is None:
        return merge(obs, patch).astype(dtype) / 255  # rearranged as bytes, because floats are four times as large
    return merge(averaged(obs, patch // pixels, dtype), pixels)


def averaged(obs: jax.Array, side: int, dtype: Any) -> jax.Array:
    """uint8 [N, h, w, c] -> [N, h / side, w / side, c] from 0 to 1: averages of side x side pixels."""
    rows = sum(obs[:, i::side].astype(dtype) for i in range(side))  # slices: XLA is much slower at reducing short axes
    return sum(rows[:, :, i::side] for i in range(side)) / (255 * side * side)


def paper_convolutions(obs: jax.Array, dtype: Any, kernel_init: Any = nn.linear.default_kernel_init) -> jax.Array:
    """uint8 [N, side, side, c] -> [N, 512]: the encoder of POPGym Arcade, for frames of 128 or 256 px."""
    if obs.shape[1:3] not in PAPER_LAYERS:
        raise UserError("--encoder paper reads frames of 128 or 256 px: use --encoder patch")
    x = obs if obs.dtype == jnp.uint8 else obs.astype(dtype) / 255
    options = {"dtype": dtype, "promote_dtype": keep_bytes, "kernel_init": kernel_init}
    for features, kernel, stride, *pool in PAPER_LAYERS[obs.shape[1:3]]:
        options["conv_general_dilated"] = functools.partial(convolve, pool=tuple(pool))
        x = nn.leaky_relu(nn.Conv(features, (kernel, kernel), stride, "VALID", **options)(x))
    return x.reshape(len(obs), -1)


class Centred(nn.Module):
    """`layer`, linear and without bias, of x[N, ...] minus the mean over the N with which the network is initialised.

    These are the first frames of the environments. Most of a frame always looks the same. Errors that do not depend on
    the frame, such as "all values are too high", have gradients that enlarge the features of this background, until
    they dominate the LayerNorm that follows (docs/ppo_rnn.md has an example). The mean is a constant of the network:
    saved with its parameters, never changed.
    """

    layer: nn.Module

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        mean = self.variable("constants", "mean", lambda: x.mean(axis=0, keepdims=True, dtype=jnp.float32))
        return self.layer(x) - self.layer(jax.lax.stop_gradient(mean.value))  # faster than layer(x - mean)


def of_weights(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """`optimizer` for the weights of a network alone: weight decay, for example, must not change `Centred`'s mean."""
    return optax.masked(optimizer, lambda params: {collection: collection == "params" for collection in params})


def in_pieces(encode: nn.Module, obs: jax.Array) -> jax.Array:
    """`encode(obs)` of obs[N, ...], read N / 8 at a time (in fewer pieces if 8 does not divide N): features [N, F].

    The backward pass reads each piece a second time, so the encoder's intermediate values are kept for one piece only.
    Every device holds a part of each piece.
    """

    def read(encode, _, piece):
        return None, nn.remat(lambda encode, piece: encode(piece))(encode, piece)

    if encode.is_initializing():  # `Centred` needs all of them
        return encode(obs)
    pieces = math.gcd(len(obs), PIECES)
    parts = obs.reshape(-1, pieces, *obs.shape[1:]).swapaxes(0, 1)
    shared = ("params", "constants")
    _, x = nn.scan(read, variable_broadcast=shared, split_rngs={"params": False})(encode, None, parts)
    return x.swapaxes(0, 1).reshape(len(obs), -1)
