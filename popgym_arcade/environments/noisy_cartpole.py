"""NoisyCartPole: CartPole, seen through noise."""

from popgym_arcade.environments.cartpole import CartPole


class NoisyCartPole(CartPole):
    """CartPole whose picture adds normal noise to all four numbers, in both twins.

    The noise is drawn at every reset and step and kept in the state. It does not affect dynamics, rewards or
    termination.
    """

    title = "NoisyCartPole"
    max_steps = 200


class NoisyCartPoleEasy(NoisyCartPole):
    """Noise of standard deviation 0.1."""

    sigma = 0.1


class NoisyCartPoleMedium(NoisyCartPole):
    """Noise of standard deviation 0.2."""

    sigma = 0.2


class NoisyCartPoleHard(NoisyCartPole):
    """Noise of standard deviation 0.3."""

    sigma = 0.3
