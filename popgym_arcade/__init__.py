"""Pixel games for memory in reinforcement learning, each as a fully and a partially observable twin, in pure JAX."""

from popgym_arcade.stand_ins import stand_ins

# gymnax needs these only to draw Catch and Pong, and importing them takes longer than importing everything else here
with stand_ins("matplotlib.pyplot", "seaborn"):
    import gymnax  # noqa: F401

from popgym_arcade.registration import REGISTERED_ENVIRONMENTS, make, register  # noqa: E402

__all__ = ["REGISTERED_ENVIRONMENTS", "__version__", "make", "register"]
__version__ = "0.1.0"
