"""docs/memory-formulas.md: every recurrence on that page, step by step in NumPy, is what that memory computes."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from popgym_arcade.baselines.networks.memory import MEMORIES

HIDDEN, WINDOW, STEPS = 16, 3, 9
ROOT = 4  # side of the matrix states
STARTS = (0, 5)


def layer_of(name, window=WINDOW):
    key = jax.random.key_data(jax.random.key(0))  # raw: memax splits a key more than once
    layer = MEMORIES[name](HIDDEN, window, key)
    numbers = np.random.default_rng(0)
    # what begins as zeros or ones would hide a factor that is missing, and so would weights that are nearly nothing
    shaken = lambda leaf: leaf + 0.3 * numbers.normal(size=leaf.shape).astype(np.float32)
    layer = jax.tree.map(lambda leaf: jnp.asarray(shaken(leaf)) if eqx.is_inexact_array(leaf) else leaf, layer)
    if name == "NMax":
        layer = eqx.tree_at(lambda layer: layer.algebra.algebra.decay, layer, jnp.ones(HIDDEN))
    return layer


def inputs():
    x = np.random.default_rng(1).normal(size=(STEPS, HIDDEN)).astype(np.float32)
    return x, np.isin(np.arange(STEPS), STARTS)


@eqx.filter_jit
def output_of(layer, carry, x, start):
    """States and outputs of a sequence."""
    return layer(carry, (x, start))


def linear(module):
    """x -> W x + b in float64."""
    weight, bias = np.asarray(module.weight, float), module.bias
    return lambda x: weight @ x + (0 if bias is None else np.asarray(bias, float))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def relu(x):
    return np.maximum(x, 0)


def leaky(x):
    return np.where(x > 0, x, 0.01 * x)


def phi(x):
    return 1 + np.where(x > 0, x, np.expm1(np.minimum(x, 0)))


def unit(x):
    return x / (np.linalg.norm(x) + 1e-6)


def rotation(project, x, size):
    a = np.zeros((size, size))
    a[np.triu_indices(size, 1)] = project(x)
    return scipy.linalg.expm(a - a.T)


# name -> function of a layer -> (state that an episode begins with, function of state and input -> state, output)


def min_gru(layer):
    gate, candidate = linear(layer.gate), linear(layer.candidate)

    def step(h, x):
        z = sigmoid(gate(x))
        h = (1 - z) * h + z * candidate(x)
        return h, h

    return np.zeros(HIDDEN), step


def s6(layer):
    a = -np.exp(np.asarray(layer.A_log, float))
    b, c, dt = linear(layer.B), linear(layer.C), linear(layer.dt.layers[0])

    def step(h, x):
        decay = np.exp(np.log1p(np.exp(dt(x))) * a)
        h = decay * h + (decay - 1) / a * b(x) * x
        return h, c(x) * h

    return np.zeros(HIDDEN), step


def lru(layer):
    eigenvalues = np.exp(-np.exp(np.asarray(layer.nu_log, float)) + 1j * np.exp(np.asarray(layer.theta_log, float)))
    b = np.asarray(layer.B_re, float) + 1j * np.asarray(layer.B_im, float)
    c = np.asarray(layer.C_re, float) + 1j * np.asarray(layer.C_im, float)
    gamma, d = np.exp(np.asarray(layer.gamma_log, float)), np.asarray(layer.D, float)

    def step(h, x):
        h = eigenvalues * h + gamma * (b @ x)
        return h, (c @ h).real + d * x

    return np.zeros(HIDDEN, complex), step


def ffm(layer):
    pre, gate_in, gate_out, mix = map(linear, (layer.pre, layer.gate_in.linear, layer.gate_out.linear, layer.mix))
    a, b = (np.asarray(each, float) for each in layer.algebra.algebra.params)
    gamma = np.exp(-np.abs(a)[:, None] + 1j * b[None])

    def step(h, x):
        h = gamma * h + (pre(x) * sigmoid(gate_in(x)))[:, None]
        z, g = mix(np.concatenate([h.real, h.imag], axis=1).reshape(-1)), sigmoid(gate_out(x))
        gated = z * g
        normed = (gated - gated.mean()) / np.sqrt(gated.var() + 1e-5)
        return h, normed + (1 - g) * x

    return np.zeros((len(a), len(b)), complex), step


def linear_rnn(layer):
    project = linear(layer.project.layers[0])
    return np.zeros(HIDDEN), lambda h, x: (h + x, leaky(project(h + x)))


def n_max(layer):
    def step(h, x):
        h = np.maximum(h, x)
        return h, h / np.abs(h).sum()

    return np.zeros(HIDDEN), step


def mlp(layer):
    project = linear(layer.project.layers[0])
    return None, lambda h, x: (None, leaky(project(x)))


def fart(layer):
    k, q, v, out = map(linear, (layer.K, layer.Q, layer.V, layer.output))

    def step(s, x):
        key, query = phi(k(x)), phi(q(x))
        s = s + np.outer(key, v(x))
        return s, out(s.T @ query / (1e-6 + key @ query)) + x

    return np.zeros((ROOT, ROOT)), step


def fwp(layer):
    k, q, v, out = map(linear, (layer.K, layer.Q, layer.V, layer.output))

    def step(s, x):
        s = s + np.outer(phi(k(x)), v(x))
        return s, out(s @ phi(q(x)))

    return np.zeros((ROOT, ROOT)), step


def silu(x):
    return x * sigmoid(x)


def delta(activation, gated):
    def make(layer):
        k, q, v, w, out = map(linear, (layer.K, layer.Q, layer.V, layer.w, layer.output))
        forget = linear(layer.alpha) if gated else None

        def step(s, x):
            key, query = unit(activation(k(x))), unit(activation(q(x)))
            beta, alpha = 2 * sigmoid(w(x)), sigmoid(forget(x)) if gated else 1
            s = alpha * (np.eye(ROOT) - beta * np.outer(key, key)) @ s + beta * np.outer(v(x), key)
            return s, out(s @ query)

        return np.zeros((ROOT, ROOT)), step

    return make


def delta_product(layer):
    k, q, v, w, out, forget = map(linear, (layer.K, layer.Q, layer.V, layer.w, layer.output, layer.alpha))

    def step(s, x):
        keys, values = unit(silu(k(x)).reshape(ROOT, 4)), v(x).reshape(ROOT, 4)
        betas = 2 * sigmoid(w(x))
        product = np.prod([beta * np.outer(key, key) for beta, key in zip(betas, keys.T, strict=True)], axis=0)
        written = sum(beta * np.outer(u, key) for beta, u, key in zip(betas, values.T, keys.T, strict=True))
        s = sigmoid(forget(x)) * (np.eye(ROOT) - product) @ s + written
        return s, out(s @ unit(silu(q(x))))

    return np.zeros((ROOT, ROOT)), step


def p_spherical(layer):
    project, out, first = linear(layer.project), linear(layer.output), np.asarray(layer.initial_vector, float)

    def step(h, x):
        h = h @ rotation(project, x, ROOT)
        return h, out(h @ (first / np.linalg.norm(first)))

    return np.eye(ROOT), step


def spherical(layer):
    algebra, out = layer.algebra.algebra, linear(layer.W_y)
    project, first = linear(algebra.project), np.asarray(algebra.initial_state, float)

    def step(h, x):
        h = rotation(project, x, HIDDEN) @ h
        return h, out(h)

    return first / np.linalg.norm(first), step


def stack(layer):
    out = linear(layer.g)

    def step(seen, x):
        seen = [*seen, x][-4:]
        zeros = [np.zeros(HIDDEN)] * (4 - len(seen))
        return seen, out(np.concatenate([*zeros, *seen]))

    return [], step


def attention(turned=False, slope=0.0):
    def turn(x, position):
        """Pairs of neighbouring numbers turned by the position times 10000 ** (-2i / H)."""
        angle = position * 10000.0 ** (-np.arange(0, HIDDEN, 2) / HIDDEN)
        z = (x[0::2] + 1j * x[1::2]) * np.exp(1j * angle)
        return np.stack([z.real, z.imag], axis=1).reshape(-1)

    def make(layer):
        k, q, v = map(linear, (layer.K, layer.Q, layer.V))

        def step(seen, x):
            seen = [*seen, x][-WINDOW:]
            ages = np.arange(len(seen))[::-1]
            keys = np.stack([turn(k(each), -age) if turned else k(each) for each, age in zip(seen, ages, strict=True)])
            logits = keys @ q(x) / np.sqrt(HIDDEN) - slope * ages
            weights = np.exp(logits - logits.max())
            return seen, weights / weights.sum() @ np.stack([v(each) for each in seen])

        return [], step

    return make


def gru(layer):
    cell = layer.algebra.algebra
    w_z, w_r, w_h, u_z, u_r, u_h = (linear(getattr(cell, f"{kind}_{gate}")) for kind in "WU" for gate in "zrh")

    def step(h, x):
        z, r = sigmoid(w_z(x) + u_z(h)), sigmoid(w_r(x) + u_r(h))
        h = (1 - z) * h + z * np.tanh(w_h(x) + u_h(r * h))
        return h, h

    return np.zeros(HIDDEN), step


def mgu(layer):
    cell = layer.algebra.algebra
    w_f, w_h, u_f, u_h = (linear(getattr(cell, f"{kind}_{gate}")) for kind in "WU" for gate in "fh")

    def step(h, x):
        f = sigmoid(w_f(x) + u_f(h))
        h = (1 - f) * h + f * np.tanh(w_h(x) + u_h(f * h))
        return h, h

    return np.zeros(HIDDEN), step


def lstm(layer):
    cell = layer.algebra.algebra
    w, u = ({gate: linear(getattr(cell, f"{kind}_{gate}")) for gate in "fioc"} for kind in "WU")

    def step(state, x):
        c, h = state
        f, i, o, new = (w[gate](x) + u[gate](h) for gate in "fioc")
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(new)
        h = sigmoid(o) * c
        return (c, h), h

    return (np.zeros(HIDDEN), np.zeros(HIDDEN)), step


def elman(activation):
    def make(layer):
        read, again, out = linear(layer.W_h), linear(layer.algebra.algebra.U_h), linear(layer.W_y)

        def step(h, x):
            h = activation(read(x) + again(h))
            return h, out(h)

        return np.zeros(HIDDEN), step

    return make


FORMULAS = {
    "MinGRU": min_gru,
    "MLP": mlp,
    "NMax": n_max,
    "FART": fart,
    "FWP": fwp,
    "DeltaNet": delta(relu, gated=False),
    "DeltaProduct": delta_product,
    "GDN": delta(silu, gated=True),
    "FFM": ffm,
    "S6": s6,
    "PSpherical": p_spherical,
    "LRU": lru,
    "LinearRNN": linear_rnn,
    "Stack": stack,
    "Attention": attention(),
    "Attention-RoPE": attention(turned=True),
    "Attention-ALiBi": attention(slope=1 / 256),
    "GRU": gru,
    "Elman": elman(np.tanh),
    "ElmanReLU": elman(relu),
    "Spherical": spherical,
    "MGU": mgu,
    "LSTM": lstm,
}


@pytest.mark.parametrize("name", MEMORIES)
def test_a_memory_computes_what_the_page_says(name):
    layer, (x, start) = layer_of(name), inputs()
    found = output_of(layer, layer.initialize_carry(None), x, start)[1]
    first, step = FORMULAS[name](layer)
    expected, state = [], first
    for t in range(STEPS):
        state, y = step(first if start[t] else state, x[t].astype(float))
        expected.append(y)
    expected = np.stack(expected)
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


def test_the_scan_of_nmax_depends_on_its_length_once_it_decays():
    """As the page says: not associative, so a rollout read at once and step by step differ."""
    x, start = inputs()
    for decay, differs in ((1.0, False), (0.9, True)):
        layer = layer_of("NMax")
        layer = eqx.tree_at(lambda layer: layer.algebra.algebra.decay, layer, jnp.full(HIDDEN, decay))
        at_once, carry, one_by_one = output_of(layer, layer.initialize_carry(None), x, start)[1], None, []
        carry = layer.initialize_carry(None)
        for t in range(STEPS):
            states, y = output_of(layer, carry, x[t : t + 1], start[t : t + 1])
            carry = layer.latest_recurrent_state(states)
            one_by_one.append(y[0])
        assert (np.abs(at_once - np.stack(one_by_one)).max() > 1e-3) == differs
