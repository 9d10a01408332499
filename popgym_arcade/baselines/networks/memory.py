"""Memories: every model of memax, and MinGRU, as one flax module.

To add a cell, write a memax `GRAS` and add it to the table in your script:

    MEMORIES = MEMORIES | {"Mine": lambda hidden_size, window, key: Mine(hidden_size, key)}

Shapes: T steps, B sequences, F input features, H hidden units; time first.
"""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import memax.equinox.train_utils as memax
from memax.equinox.gras import GRAS
from memax.equinox.groups import BinaryAlgebra, Resettable
from memax.equinox.models.residual import ResidualModel
from memax.equinox.scans import semigroup_scan
from memax.equinox.semigroups.s6 import S6Semigroup

from popgym_arcade.baselines.devices.mesh import leaf_name
from popgym_arcade.baselines.errors import UserError, one_line
from popgym_arcade.baselines.jax_defaults import jax_defaults
from popgym_arcade.baselines.networks.memax_fixes import PSpherical, Spherical, Stack


class MinGRU(GRAS):
    """h_t = (1 - z_t) h_{t-1} + z_t W_h x_t with z_t = sigmoid(W_z x_t), computed as an associative scan.

    Feng et al. 2024, "Were RNNs All We Needed?", https://arxiv.org/abs/2410.01201
    """

    algebra: BinaryAlgebra
    scan: Any
    gate: eqx.nn.Linear
    candidate: eqx.nn.Linear

    def __init__(self, hidden_size: int, key: jax.Array):
        gate_key, candidate_key = jax.random.split(key)
        self.algebra = Resettable(S6Semigroup(hidden_size))  # h -> a h + b
        self.scan = semigroup_scan
        self.gate = eqx.nn.Linear(hidden_size, hidden_size, key=gate_key)
        self.candidate = eqx.nn.Linear(hidden_size, hidden_size, key=candidate_key)

    def forward_map(self, x, key=None):
        features, start = x
        z = jax.nn.sigmoid(self.gate(features))
        return (1 - z, z * self.candidate(features)), start

    def backward_map(self, h, x, key=None):
        (_, hidden), _ = h
        return hidden


def memax_layer(name: str):
    """A function (hidden_size, window, key) -> layer for a model of memax. Attention sees the last `window` steps."""

    def make(hidden_size: int, window: int, key: jax.Array):
        kwargs = {name: {"window_size": window}} if name.startswith("Attention") else {}
        model = memax.get_residual_memory_model(
            name, 1, hidden_size, 1, num_layers=1, key=key, layer_kwargs=kwargs, model_kwargs={}
        )
        return model.layers[0]

    return make


MEMAX_NAMES = (
    "MLP NMax FART FWP DeltaNet DeltaProduct GDN FFM S6 PSpherical LRU LinearRNN Stack Attention Attention-RoPE"
    " Attention-ALiBi GRU Elman ElmanReLU Spherical MGU LSTM"
)
MEMORIES = {"MinGRU": lambda hidden_size, window, key: MinGRU(hidden_size, key)}
MEMORIES |= {name: memax_layer(name) for name in MEMAX_NAMES.split()}
# the same results as memax's own, see memax_fixes.py
MEMORIES["PSpherical"] = lambda hidden_size, window, key: PSpherical(round(hidden_size**0.5), hidden_size, key)
MEMORIES["Spherical"] = lambda hidden_size, window, key: Spherical(hidden_size, hidden_size, key)
MEMORIES["Stack"] = lambda hidden_size, window, key: Stack(hidden_size, 4, key)


def build_memory(
    cell: Callable, sizes: tuple[int, int, int], num_layers: int, window: int, key: jax.Array
) -> ResidualModel:
    """memax's model with fresh weights; `sizes` are the input, output and hidden sizes."""

    # memax 0.1.1 reuses keys within and between layers, so each layer gets a key of its own, a raw one
    def one_layer(key):
        outer_key, layer_key = jax.random.key_data(jax.random.split(key))
        make_layer = lambda recurrent_size, key: cell(recurrent_size, window, layer_key)
        return ResidualModel(make_layer, *sizes, num_layers=1, key=outer_key)

    models = [one_layer(layer_key) for layer_key in jax.random.split(key, num_layers)]
    parts = [model.layers[0] for model in models], [model.ff[0] for model in models]
    return eqx.tree_at(lambda model: (model.layers, model.ff), models[0], parts)


@functools.lru_cache
def memory_skeleton(*config):
    """`build_memory(*config, key)`, split into the shapes of its weights and the rest; computes nothing.

    Raises UserError if one of its arrays cannot be learned.
    """
    with jax.ensure_compile_time_eval(), jax_defaults():
        model = eqx.filter_eval_shape(build_memory, *config, jax.random.key(0))
    shapes, rest = eqx.partition(model, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise UserError(f"the memory's {leaf_name(path)} is {leaf.dtype}: its arrays are learned, so use floats")
    return shapes, rest


@functools.lru_cache
def size_error(cell: Callable, hidden_size: int) -> Exception | None:
    """The error that building or reading a memory of this width raises, None if it works; computes nothing."""
    memory = Memory(cell, 1, hidden_size, 1, num_layers=1, window=2)

    def weights(key):
        carry = memory.initial_carry(1)
        return memory.init(key, carry, jnp.zeros((2, 1, 1)), jnp.zeros((2, 1), bool))

    try:
        empty = [x for x in jax.tree.leaves(jax.eval_shape(weights, jax.random.key(0))) if 0 in x.shape]
    except Exception as error:  # its type depends on the memory's library
        return error
    return ValueError("some of its weights would be empty") if empty else None


def check_size(name: str, cell: Callable, hidden_size: int) -> None:
    """Raises UserError, naming the nearest possible widths, if a memory cannot have this one.

    A cell that works at no width is broken, and raises its own error.
    """
    error = size_error(cell, hidden_size)
    if error is None:
        return
    steps = (2, 4, 8, 16, 32, 64)
    below = sorted({hidden_size // step * step for step in steps} - {0, hidden_size}, reverse=True)
    above = sorted({hidden_size // step * step + step for step in steps})
    possible = (next((size for size in sizes if not size_error(cell, size)), None) for sizes in (below, above))
    use = " or ".join(str(size) for size in possible if size)
    if not use:
        raise error
    raise UserError(f"--memory {name} cannot have --hidden-size {hidden_size} ({one_line(error)}): use {use}")


class Memory(nn.Module):
    """Layers of a memory: carry, x[T, B, F], start[T, B] -> carry, y[T, B, output_size], in float32.

    memax calls such layers residual, but nothing is added.

    Wraps an equinox model. Its arrays are this module's parameters, under the same names. They are created and used in
    JAX's default precision, see `jax_defaults`.

    Attributes:
        cell: cell(hidden_size, window, key) -> layer, a value of MEMORIES
        input_size: F
        hidden_size: H, the width of every layer
        output_size: width of y
        num_layers: layers, each with a state of its own
        window: steps that attention looks back
    """

    cell: Callable
    input_size: int
    hidden_size: int
    output_size: int
    num_layers: int
    window: int

    @nn.nowrap
    def config(self):
        return self.cell, (self.input_size, self.output_size, self.hidden_size), self.num_layers, self.window

    @nn.nowrap
    def initial_carry(self, batch: int) -> Any:
        """The memory of `batch` new sequences, leaves [B, ...]. Their first step must have start = True."""
        shapes, rest = memory_skeleton(*self.config())
        # any weights will do: at a start flag, the model computes its first state from the real ones
        model = eqx.combine(jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), shapes), rest)
        with jax_defaults():
            return memax.add_batch_dim(model.initialize_carry(None), batch)

    def __call__(self, carry: Any, x: jax.Array, start: jax.Array) -> tuple[Any, jax.Array]:
        with jax_defaults():
            return self.read(carry, x.astype(jnp.float32), start)

    @nn.compact
    def read(self, carry: Any, x: jax.Array, start: jax.Array) -> tuple[Any, jax.Array]:
        shapes, rest = memory_skeleton(*self.config())
        named_shapes, treedef = jax.tree_util.tree_flatten_with_path(shapes)
        names = [leaf_name(path) for path, _ in named_shapes]

        def init_weights():
            model = build_memory(*self.config(), self.make_rng("params"))
            return dict(zip(names, jax.tree.leaves(eqx.filter(model, eqx.is_array)), strict=True))

        # not self.param, which traces the initialiser again at every call
        weights = self.variable("params", "weights", init_weights).value
        model = eqx.combine(jax.tree.unflatten(treedef, [weights[name] for name in names]), rest)

        def one_sequence(carry, x, start):
            carries, y = model(carry, (x, start))
            return model.latest_recurrent_state(carries), y

        return jax.vmap(one_sequence, in_axes=(0, 1, 1), out_axes=(0, 1))(carry, x, start)
