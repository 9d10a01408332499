"""AutoEncode: watch a sequence of cards, play it back in reverse (section 3 of the specification)."""

import numpy as np

from families import chances
from families.base import FIRE, LEFT, RIGHT, UP, Family, Game, blank, one, pad, repaint

CARDS = (26, 52, 78)
SUITS = 4

CANVAS, RED, BLACK = (173, 217, 230), (255, 0, 0), (0, 0, 0)
SCORE, NAME = (255, 48, 71), (255, 105, 186)
MARK = NAME  # the specification gives the mark no colour; this one is not seen beside it otherwise
FACE, BORDER = (255, 255, 255), (64, 64, 64)  # of a card; arrows and question mark have the border's colour


def fields(level):
    whole = ((), np.int32)
    return {"time": whole, "score": whole, "cards": ((CARDS[level],), np.int8), "answered": whole, "selected": whole}


def step(level, state, action, limit):
    n = CARDS[level]
    action = min(max(int(action), 0), 4)
    playing = state["time"] >= n
    state["time"] += 1
    reward = 0.0
    if action == LEFT:
        state["selected"] = (state["selected"] + 1) % 4
    elif action == RIGHT:
        state["selected"] = (state["selected"] - 1) % 4
    elif action == FIRE and playing:
        if state["cards"][n - 1 - state["answered"]] == state["selected"]:
            reward = 1 / n
            state["score"] += 1
        state["answered"] += 1
    return state, reward, bool(state["answered"] == n)


def check_fresh(level, states):
    n = CARDS[level]
    for name in ("time", "score", "answered", "selected"):
        assert (getattr(states, name) == 0).all(), name
    assert (np.sort(states.cards, axis=1) == np.sort(np.arange(n) % SUITS)).all(), "not a permutation of the multiset"


def draws(level, states):
    n, cards = CARDS[level], states.cards
    found = {"card by place": chances.permutation(cards, SUITS)}
    for first, second in ((0, 1), (n // 2, n // 2 + 1), (n - 2, n - 1), (0, n - 1), (0, SUITS), (3, n // 2)):
        found[f"cards {first} and {second}"] = chances.two_places(cards, first, second, SUITS)
    return found


def turn(start, goal):
    """The fewest actions that lead from one suit to another."""
    left = (goal - start) % SUITS
    return [LEFT] * left if left <= 2 else [RIGHT] * (SUITS - left)


def answers(level, state, shift=lambda answer: 0):
    """A plan that watches and then answers every card with its suit plus shift(number of the answer)."""
    n = CARDS[level]
    plan, selected = [UP] * n, 0
    for answer in range(n):
        suit = (int(state.cards[n - 1 - answer]) + shift(answer)) % SUITS
        plan += [*turn(selected, suit), FIRE]
        selected = suit
    return plan


def games(level, fresh):
    n, limit = CARDS[level], 10 * CARDS[level]
    found = []
    for i in range(12):
        state = one(fresh, i)
        right = answers(level, state)
        found.append(Game("knows all", state, pad(right, limit, UP), 1.0))
        found.append(Game("all wrong", state, pad(answers(level, state, lambda answer: 1), limit, FIRE), 0.0))
        half = answers(level, state, lambda answer: 2 * (answer % 2))
        found.append(Game("every other one wrong", state, pad(half, limit, FIRE), 0.5))
        late = [UP] * (limit - len(right)) + right[n:]
        late = right[:n] + late[: limit - len(right)] + right[n:]
        found.append(Game("the last answer on the last permitted step", state, np.array(late, np.int32), 1.0))
        too_late = [*late[:n], UP, *late[n:-1]]
        found.append(Game("one step too late", state, np.array(too_late, np.int32), 1 - 1 / n))
        # Confirms all the time, while watching too, in one suit chosen in the watch phase
        suit = i % SUITS
        share = (np.arange(n) % SUITS == suit).sum() / n
        found.append(Game("fires always", state, pad([LEFT] * suit, limit, FIRE), share))
    found.append(Game("never answers", one(fresh, 0), pad([], limit, LEFT), 0.0))
    return found


def possible(level, states):
    n = CARDS[level]
    ok = (states.answered >= 0) & (states.answered < n) & (states.answered <= np.maximum(states.time - n, 0))
    ok &= (states.selected >= 0) & (states.selected < SUITS) & ((states.cards >= 0) & (states.cards < SUITS)).all(1)
    return ok & (states.score >= 0) & (states.score <= states.answered) & (states.time >= 0)


def equal_secrets(level, states, others):
    """The cards not yet shown are secret: give `others` those of `states`, counted from the card now shown."""
    cards = others.cards.copy()
    for i in range(len(cards)):
        mine, theirs = states.time[i] + 1, others.time[i] + 1
        if mine != theirs:  # alike in partial frames only, for which a test sets time 0 to 1: card 1 is shown there
            mine, theirs = max(mine, 2), max(theirs, 2)
        length = max(0, min(cards.shape[1] - mine, cards.shape[1] - theirs))
        cards[i, theirs : theirs + length] = states.cards[i, mine : mine + length]
    return others.replace(cards=cards)


def other_suits(cards, rng):
    return ((cards + rng.integers(1, SUITS, size=cards.shape)) % SUITS).astype(cards.dtype)


def hidden(level, states, rng):
    n = CARDS[level]
    places, now = np.arange(n), states.time[:, None]
    changed = other_suits(states.cards, rng)
    playing = states.time >= n
    return {
        "history": states.replace(cards=np.where(places < now, changed, states.cards)),
        "cards to come": states.replace(cards=np.where(places > now, changed, states.cards)),
        "the place in the playback": states.replace(
            answered=np.where(playing, (states.answered + 1) % n, states.answered).astype(np.int32)
        ),
    }


def shown(level, states, rng):
    n = CARDS[level]
    now = np.arange(n) == states.time[:, None]
    return {
        # In the play phase no card is shown: go back to when one was.
        "card": states.replace(
            cards=np.where(now, other_suits(states.cards, rng), states.cards),
            time=np.where(states.time < n, states.time, n - 1).astype(np.int32),
        ),
        "selected suit": states.replace(selected=(states.selected + 1) % SUITS),
        "score": states.replace(score=states.score + 1),
    }


def gallery(level, state):
    n = CARDS[level]
    cards = (np.arange(n) // 2 % SUITS).astype(np.int8)

    def moment(time, answered, selected, score):
        numbers = {"time": time, "answered": answered, "selected": selected, "score": score}
        return state.replace(cards=cards, **{name: np.int32(value) for name, value in numbers.items()})

    return [
        moment(0, 0, 0, 0),
        moment(13, 0, 1, 0),  # a second row of history, a card shown
        moment(n + 9, 5, 2, 3),  # the mark on the sixth card from the end
        moment(8 * n, n, 3, n),  # after the last answer: no mark
    ]


FAMILY = Family(
    limits=tuple(10 * n for n in CARDS),
    fields=fields,
    bounds=lambda level: (0.0, 1.0),
    score_color=SCORE,
    name_color=NAME,
    palette=frozenset({CANVAS, RED, BLACK, SCORE, NAME, FACE, BORDER}),
    step=step,
    check_fresh=check_fresh,
    draws=draws,
    games=games,
    possible=possible,
    equal_secrets=equal_secrets,
    hidden=hidden,
    shown=shown,
    cues={
        "the card shown": blank(0, 0, 14, 22),
        "the selected suit": blank(114, 0, 128, 22),
        "the history": blank(19, 19, 109, 114),
        "the mark": repaint(MARK, FACE),  # and the name, which is always the same
    },
    gallery=gallery,
)
