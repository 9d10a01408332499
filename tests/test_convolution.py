"""The convolution that CPUs run equals the one that XLA has, and so do its gradients."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from popgym_arcade.baselines.networks import convolution

# size of the kernel, its stride, (window, stride) of the pooling: the paper's, the residual network's, and others
LAYERS = [
    (5, 2, (2, 2)),
    (7, 2, (2, 2)),
    (3, 2, (3, 1)),
    (1, 1, (1, 1)),
    (3, 1, (1, 1)),
    (3, 1, (3, 2)),
    (4, 3, (2, 3)),
]


def native(x, kernel, stride, pool):
    numbers = ("NHWC", "HWIO", "NHWC")
    y = jax.lax.conv_general_dilated(x, kernel, (stride, stride), "VALID", dimension_numbers=numbers)
    return nn.max_pool(y, (pool[0], pool[0]), (pool[1], pool[1]))


def weighted(convolve, weights):
    """The result of a layer, and the gradients of a weighted sum of it with respect to its inputs `to`."""

    def total(*inputs):
        y = convolve(*inputs)
        return (y * weights[: y.size].reshape(y.shape)).sum(), y

    return lambda *inputs, to: jax.jit(jax.value_and_grad(total, to, has_aux=True))(*inputs)


@pytest.mark.parametrize(("size", "stride", "pool"), LAYERS)
@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_it_equals_the_native_convolution_and_pooling(device, size, stride, pool, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: device)
    keys = jax.random.split(jax.random.key(size), 3)
    x, kernel = jax.random.normal(keys[0], (2, 30, 27, 3)), jax.random.normal(keys[1], (size, size, 3, 4))
    weights = jax.random.normal(keys[2], (10_000,))
    options = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    layer = lambda x, kernel: convolution.convolve(x, kernel, (stride, stride), "VALID", pool=pool, **options)
    (_, got), gradients = weighted(layer, weights)(x, kernel, to=(0, 1))
    (_, want), native_gradients = weighted(lambda *inputs: native(*inputs, stride, pool), weights)(x, kernel, to=(0, 1))
    np.testing.assert_allclose(got, want, atol=1e-4)
    for ours, theirs in zip(gradients, native_gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-4)
    found = "stablehlo.convolution" in jax.jit(layer).lower(x, kernel).as_text()
    assert found == (device == "gpu")


@pytest.mark.parametrize(
    "options", [{"padding": "SAME"}, {"kernel_dilation": 2}, {"feature_group_count": 3}, {"strides": (1, 2)}]
)
def test_what_a_cpu_would_not_apply_is_refused(options):
    """flax's own convolution would; with `convolve`, a CPU and a GPU would train different networks."""
    conv = nn.Conv(6, (3, 3), **{"padding": "VALID"} | options, conv_general_dilated=convolution.convolve)
    with pytest.raises(ValueError, match="use padding VALID, square kernels, equal strides, no dilation and no groups"):
        conv.init(jax.random.key(0), jnp.zeros((1, 9, 9, 3)))


@pytest.mark.parametrize("frames", [1, 5, 8, 12, 48])
def test_bytes_count_as_zero_to_one_however_many_are_read_at_once(frames):
    obs = jax.random.randint(jax.random.key(0), (frames, 20, 20, 3), 0, 256).astype(jnp.uint8)
    kernel = jax.random.normal(jax.random.key(1), (5, 5, 3, 4))
    weights = jax.random.normal(jax.random.key(2), (20_000,))
    layer = weighted(lambda kernel, x: convolution.convolve(x, kernel, (2, 2), pool=(2, 2)), weights)
    (_, got), gradient = layer(kernel, obs, to=0)
    (_, want), float_gradient = layer(kernel, obs.astype(jnp.float32) / 255, to=0)
    # sums of 75 products of numbers up to 4: how a busy machine cuts them into parts decides their last bits
    np.testing.assert_allclose(got, want, atol=1e-5)
    np.testing.assert_allclose(gradient, float_gradient, atol=1e-4)
    parts = convolution.split(obs, convolution.at_once(obs))
    np.testing.assert_array_equal(convolution.join(parts), obs)
    assert parts.shape[1] == {1: 1, 5: 1, 8: 8, 12: 4, 48: 8}[frames]


def test_many_kernels_at_once_equal_one_after_the_other():
    obs = jax.random.randint(jax.random.key(0), (3, 8, 20, 20, 3), 0, 256).astype(jnp.uint8)
    kernels, weights = jax.random.normal(jax.random.key(1), (3, 5, 5, 3, 4)), jnp.ones(20_000)
    layer = weighted(lambda kernel, x: convolution.convolve(x, kernel, (2, 2), pool=(2, 2)), weights)
    gradient = lambda kernel, x: layer(kernel, x, to=0)[1]
    want = [gradient(kernel, x) for kernel, x in zip(kernels, obs, strict=True)]
    np.testing.assert_allclose(jax.vmap(gradient)(kernels, obs), jnp.stack(want), rtol=1e-5, atol=1e-4)


def test_the_first_of_equal_values_gets_the_whole_gradient():
    x, kernel = jnp.ones((1, 2, 2, 1)).at[0, 0, 0, 0].set(0.0), jnp.ones((1, 1, 1, 1))
    gradient = jax.grad(lambda x: convolution.convolve(x, kernel, (1, 1), pool=(2, 2)).sum())(x)
    np.testing.assert_array_equal(gradient[0, :, :, 0], [[0.0, 1.0], [0.0, 0.0]])


def test_half_precision_is_kept_and_bytes_are_not_promoted():
    obs = jax.random.randint(jax.random.key(0), (4, 20, 20, 3), 0, 256).astype(jnp.uint8)
    options = {"promote_dtype": convolution.keep_bytes, "conv_general_dilated": convolution.convolve}
    features = {}
    for dtype in (jnp.float32, jnp.bfloat16):
        layer = nn.Conv(4, (5, 5), 2, "VALID", dtype=dtype, **options)
        params = layer.init(jax.random.key(1), obs)
        features[dtype] = jax.jit(layer.apply)(params, obs)
        assert features[dtype].dtype == dtype
        gradient = jax.jit(jax.grad(lambda params, layer=layer: layer.apply(params, obs).sum().astype(float)))(params)
        assert all(leaf.dtype == jnp.float32 and jnp.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient))
    np.testing.assert_allclose(features[jnp.bfloat16].astype(float), features[jnp.float32], rtol=0.05, atol=0.05)
    assert convolution.keep_bytes(obs, None, jnp.ones(2), dtype=jnp.bfloat16)[0] is obs
