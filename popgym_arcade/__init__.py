"""Pixel games for memory in reinforcement learning, each as a fully and a partially observable twin, in pure JAX."""

from popgym_arcade.registration import REGISTERED_ENVIRONMENTS, make, register

__all__ = ["REGISTERED_ENVIRONMENTS", "__version__", "make", "register"]
__version__ = "0.1.0"
