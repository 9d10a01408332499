"""CartPole and NoisyCartPole: balance the pole (sections 6 and 7 of the specification)."""

import dataclasses
import math

import jax.numpy as jnp
import numpy as np

from families import chances
from families.base import LEFT, RIGHT, Family, Game, blank, no_secrets, one

LIMITS = (200, 400, 600)
NOISY_LIMITS = (200, 200, 200)
SIGMAS = (0.1, 0.2, 0.3)
X_LIMIT, ANGLE_LIMIT = 2.4, 12 * math.pi / 180
GRAVITY, CART, POLE, HALF_LENGTH, FORCE, TAU = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
VARIABLES = ("x", "x_dot", "theta", "theta_dot")
START = 0.05

CANVAS, CART_COLOR, POLE_COLOR = (51, 51, 51), (245, 74, 140), (140, 69, 18)
ARROWS, SCORE, NAME = (204, 204, 204), (0, 255, 128), (74, 214, 247)
SCALE = (102, 102, 102)  # the lines that the arrows lie on, with a mark where they begin


def fields(level):
    return {"time": ((), np.int32), "noise": ((4,), np.float32), **{name: ((), np.float32) for name in VARIABLES}}


def physics(x, x_dot, theta, theta_dot, push):
    """Explicit Euler, in the precision of the arguments (float64 here)."""
    total, moment = CART + POLE, POLE * HALF_LENGTH
    sine, cosine = np.sin(theta), np.cos(theta)
    pull = (push + moment * theta_dot**2 * sine) / total
    turn = (GRAVITY * sine - cosine * pull) / (HALF_LENGTH * (4 / 3 - POLE * cosine**2 / total))
    slide = pull - moment * turn * cosine / total
    return x + TAU * x_dot, x_dot + TAU * slide, theta + TAU * theta_dot, theta_dot + TAU * turn


def out_of_bounds(x, theta):
    return bool(abs(x) > X_LIMIT or abs(theta) > ANGLE_LIMIT)


def push_of(action):
    return {LEFT: -FORCE, RIGHT: FORCE}.get(min(max(int(action), 0), 4), 0.0)


def step(level, state, action, limit):
    state["time"] += 1
    moved = physics(*(np.float64(state[name]) for name in VARIABLES), push_of(action))
    state.update(zip(VARIABLES, moved, strict=True))
    return state, 1 / limit, out_of_bounds(state["x"], state["theta"])


def check_fresh(level, states):
    assert (states.time == 0).all()
    for name in VARIABLES:
        assert (np.abs(getattr(states, name)) <= START).all(), name


def check_fresh_quiet(level, states):
    check_fresh(level, states)
    assert (states.noise == 0).all(), "CartPole has no noise"


def check_fresh_noisy(level, states):
    check_fresh(level, states)
    assert (np.abs(states.noise) < 7 * SIGMAS[level]).all() and (states.noise != 0).all()


def draws(level, states):
    values = {name: getattr(states, name) for name in VARIABLES}
    found = {name: chances.uniform(value, -START, START) for name, value in values.items()}
    found |= pairs(values)
    return found


def draws_noisy(level, states):
    values = {name: getattr(states, name) for name in VARIABLES}
    noise = {f"noise {i}": states.noise[:, i] for i in range(4)}
    found = draws(level, states) | {name: chances.normal(value, SIGMAS[level]) for name, value in noise.items()}
    return found | pairs(values | noise)


def pairs(values):
    names = list(values)
    return {
        f"{one} and {other}": chances.unrelated(values[one], values[other])
        for i, one in enumerate(names)
        for other in names[:i]
    }


# Experts: the plan is a vector of gains and a bias. The push goes where gains * variables + bias points.

BALANCE = np.array([0.3, 0.6, 5.0, 1.0, 0.0], np.float32)


def policy(plan, state):
    signal = plan @ jnp.array([state.x, state.x_dot, state.theta, state.theta_dot, 1.0])
    return jnp.where(signal > 0, RIGHT, LEFT)


def survival(state, push):
    """How many steps the slow model lives under a constant push."""
    values, steps = [np.float64(getattr(state, name)) for name in VARIABLES], 0
    while not out_of_bounds(values[0], values[2]):
        values, steps = physics(*values, push), steps + 1
    return steps


def games(limits):
    def make(level, fresh):
        limit = limits[level]
        found = [Game("balances", one(fresh, i), BALANCE, 1.0) for i in range(len(fresh.time))]
        edge = np.float32(START * 0.9999)
        for corner in range(16):
            signs = [edge * (1 - (corner >> bit & 1) * 2) for bit in range(4)]
            state = one(fresh, 0).replace(**dict(zip(VARIABLES, map(np.float32, signs), strict=True)))
            for push in (-FORCE, FORCE):
                plan = np.array([0, 0, 0, 0, push], np.float32)
                found.append(Game("pushes one way", state, plan, survival(state, push) / limit))
        return found

    return make


def possible(level, states):
    return (np.abs(states.x) <= X_LIMIT) & (np.abs(states.theta) <= ANGLE_LIMIT)


def hidden(level, states, rng):
    count = len(states.time)
    return {
        "x": states.replace(x=rng.uniform(-X_LIMIT, X_LIMIT, count).astype(np.float32)),
        "theta": states.replace(theta=rng.uniform(-ANGLE_LIMIT, ANGLE_LIMIT, count).astype(np.float32)),
    }


def hidden_noisy(level, states, rng):
    noise = states.noise.copy()
    noise[:, [0, 2]] += rng.normal(0, 0.3, (len(noise), 2)).astype(np.float32)
    return hidden(level, states, rng) | {"noise of x and theta": states.replace(noise=noise)}


def shown(level, states, rng):
    found = {"time, as the score": states.replace(time=states.time + 1)}
    for name in ("x_dot", "theta_dot"):
        noise = states.noise[:, VARIABLES.index(name)]
        seen = np.clip(getattr(states, name) + noise, -3, 3)  # the scale ends there
        moved = np.where(seen > 0, seen - 0.5, seen + 0.5)  # half a unit is more than a pixel
        found[name] = states.replace(**{name: (moved - noise).astype(np.float32)})
    return found


def gallery(level, state):
    def moment(time, *values, noise=(0, 0, 0, 0)):
        variables = dict(zip(VARIABLES, map(np.float32, values), strict=True))
        return state.replace(time=np.int32(time), noise=np.array(noise, np.float32), **variables)

    # Values are off the pixel boundaries, so that the last bit of a float cannot move a shape.
    return [
        moment(0, 0.01, 0.02, -0.03, 0.04),
        moment(57, 2.38, 2.9, 0.2, -2.9),  # right edge, pole to the right
        moment(138, -2.38, -1.3, -0.2, 1.3),
        moment(600, 0.7, 5.0, 0.1, -5.0),  # speeds beyond the scale
    ]


def gallery_noisy(level, state):
    # The frame shows state plus noise, with x and theta clipped: here at both ends.
    noise = np.array([0.9, -0.6, 0.15, 0.35], np.float32)
    noises = [0.1 * noise, noise, -noise, -0.5 * noise]
    return [moment.replace(noise=noise) for moment, noise in zip(gallery(level, state), noises, strict=True)]


CARTPOLE = Family(
    limits=LIMITS,
    fields=fields,
    bounds=lambda level: (8 / LIMITS[level], 1.0),
    score_color=SCORE,
    name_color=NAME,
    palette=frozenset({CANVAS, CART_COLOR, POLE_COLOR, ARROWS, SCORE, NAME}),
    extra_colors=frozenset({SCALE}),
    step=step,
    check_fresh=check_fresh_quiet,
    draws=draws,
    games=games(LIMITS),
    possible=possible,
    equal_secrets=no_secrets,
    hidden=hidden,
    shown=shown,
    cues={"cart and pole": blank(16, 32, 112, 80)},
    gallery=gallery,
    policy=policy,
    markov="pixel",
)

NOISY_CARTPOLE = dataclasses.replace(
    CARTPOLE,
    limits=NOISY_LIMITS,
    bounds=lambda level: (8 / NOISY_LIMITS[level], 1.0),
    check_fresh=check_fresh_noisy,
    draws=draws_noisy,
    games=games(NOISY_LIMITS),
    hidden=hidden_noisy,
    gallery=gallery_noisy,
    drawn=("noise",),
    markov="noisy",
)
