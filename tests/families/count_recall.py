"""CountRecall: how often has this card come up? (section 8 of the specification)."""

import numpy as np

from families import chances
from families.base import DOWN, FIRE, LEFT, UP, Family, Game, blank, one, pad

CARDS = (26, 52, 78)
TYPES = (2, 2, 4)
MOVES = 100  # the limit leaves this many steps beside one fire per card

CANVAS, BOARD, SCORE = (245, 245, 245), (153, 179, 204), (191, 26, 26)
COUNTER, NAME = (143, 237, 143), (74, 191, 240)
RED, BLACK = (255, 0, 0), (0, 0, 0)  # suits, as in AutoEncode
FACE, BORDER = (255, 255, 255), (64, 64, 64)  # of a card; plus and question mark have the border's colour


def fields(level):
    whole, cards = ((), np.int32), ((CARDS[level],), np.int8)
    return {
        "time": whole,
        "score": whole,
        "value_cards": cards,
        "query_cards": cards,
        "answered": whole,
        "count": whole,
    }


def right_answer(state):
    """How many value cards before the one now shown are of the queried type."""
    answered = int(state["answered"])
    right = 0
    for index in range(answered):
        right += state["value_cards"][index] == state["query_cards"][answered]
    return int(right)


def step(level, state, action, limit):
    n = CARDS[level]
    action = min(max(int(action), 0), 4)
    state["time"] += 1
    reward = 0.0
    if action == UP:
        state["count"] = np.minimum(state["count"] + 1, n)
    elif action == DOWN:
        state["count"] = np.maximum(state["count"] - 1, 0)
    elif action == FIRE:
        if int(state["count"]) == right_answer(state):
            reward = 1 / n
            state["score"] += 1
        state["answered"] += 1
    return state, reward, bool(state["answered"] == n)


def check_fresh(level, states):
    n, types = CARDS[level], TYPES[level]
    for name in ("time", "score", "answered", "count"):
        assert (getattr(states, name) == 0).all(), name
    multiset = np.sort(np.arange(n) % types)
    for cards in (states.value_cards, states.query_cards):
        assert (np.sort(cards, axis=1) == multiset).all(), "not a permutation of the multiset"


def draws(level, states):
    n, types = CARDS[level], TYPES[level]
    values, queries = states.value_cards, states.query_cards
    found = {}
    for name, cards in (("value", values), ("query", queries)):
        found[f"{name} card by place"] = chances.permutation(cards, types)
        for first, second in ((0, 1), (n // 2, n // 2 + 1), (n - 2, n - 1), (0, n - 1)):
            found[f"{name} cards {first} and {second}"] = chances.two_places(cards, first, second, types)
    for place, other in ((0, 0), (n // 2, n // 2), (n - 1, n - 1), (0, n - 1), (1, 0)):
        found[f"value card {place}, query card {other}"] = chances.independent(
            values[:, place], queries[:, other], types
        )
    return found


def clairvoyant(level, state, limit):
    """The best that can be done knowing all cards: (right answers, plan).

    An answer given in passing, without setting the counter, costs one step; setting it costs its way besides. So choose
    the sequence of queries to get right: cheapest[j] = least moves for k right answers, of which query j is the last.
    """
    n = CARDS[level]
    needed = np.array([(state.value_cards[:i] == state.query_cards[i]).sum() for i in range(n)])
    way = np.abs(needed[:, None] - needed[None, :]).astype(float)
    way[np.tril_indices(n)] = np.inf  # from an earlier to a later query only
    cheapest, before = needed.astype(float), []
    best = (0, None)
    for right in range(1, n + 1):
        last = np.flatnonzero(cheapest + np.arange(n) + 1 <= limit)
        if len(last) == 0:
            break
        best = (right, last[0])
        costs = cheapest[:, None] + way
        before.append(costs.argmin(0))
        cheapest = costs.min(0)

    right, query = best
    chosen = set()
    for k in range(right - 1, -1, -1):
        chosen.add(query)
        query = before[k - 1][query] if k else None
    plan, count = [], 0
    for query in range(max(chosen, default=-1) + 1):
        if query in chosen:
            turn = needed[query] - count
            plan += [UP if turn > 0 else DOWN] * abs(turn)
            count = needed[query]
        plan.append(FIRE)
    return right, pad(plan, limit, LEFT)


def games(level, fresh):
    n, limit = CARDS[level], CARDS[level] + MOVES
    found = []
    for i in range(len(fresh.time)):
        right, plan = clairvoyant(level, one(fresh, i), limit)
        found.append(Game("clairvoyant", one(fresh, i), plan, right / n))
    state = one(fresh, 0)
    found.append(Game("never answers", state, pad([], limit, UP), 0.0))
    # The counter at N is never right: a type has N / 2 cards at most.
    found.append(Game("always wrong", state, pad([UP] * n, limit, FIRE), 0.0))
    return found


def possible(level, states):
    n, types = CARDS[level], TYPES[level]
    ok = (states.answered >= 0) & (states.answered < n) & (states.count >= 0) & (states.count <= n)
    for cards in (states.value_cards, states.query_cards):
        ok &= (np.sort(cards, axis=1) == np.sort(np.arange(n) % types)).all(1)
    return ok & (states.score >= 0) & (states.score <= states.answered)


def equal_secrets(level, states, others):
    """The order of the cards not yet shown is secret: put those of `others` in the order of `states`.

    How many of each type are still to come is no secret. Where that differs, nothing can be put in the same order.
    """
    values, queries = others.value_cards.copy(), others.query_cards.copy()
    for i in range(len(states.time)):
        mine, theirs = states.answered[i] + 1, others.answered[i] + 1
        for cards, ordered in ((values, states.value_cards), (queries, states.query_cards)):
            if np.array_equal(np.sort(cards[i, theirs:]), np.sort(ordered[i, mine:])):
                cards[i, theirs:] = ordered[i, mine:]
    return others.replace(value_cards=values, query_cards=queries)


def other_types(level, cards, rng):
    return ((cards + rng.integers(1, TYPES[level], size=cards.shape)) % TYPES[level]).astype(cards.dtype)


def hidden(level, states, rng):
    places = np.arange(CARDS[level])
    past = places < states.answered[:, None]
    shown = places == states.answered[:, None]
    return {
        "history": states.replace(
            value_cards=np.where(past, other_types(level, states.value_cards, rng), states.value_cards)
        ),
        "cards to come": states.replace(
            value_cards=np.where(past | shown, states.value_cards, other_types(level, states.value_cards, rng)),
            query_cards=np.where(past | shown, states.query_cards, other_types(level, states.query_cards, rng)),
        ),
    }


def shown(level, states, rng):
    now = np.arange(CARDS[level]) == states.answered[:, None]
    return {
        "value card": states.replace(
            value_cards=np.where(now, other_types(level, states.value_cards, rng), states.value_cards)
        ),
        "query card": states.replace(
            query_cards=np.where(now, other_types(level, states.query_cards, rng), states.query_cards)
        ),
        "counter": states.replace(count=np.where(states.count > 0, states.count - 1, 1).astype(np.int32)),
        "score": states.replace(score=states.score + 1),
    }


def gallery(level, state):
    n, types = CARDS[level], TYPES[level]
    values = (np.arange(n) // 2 % types).astype(np.int8)
    queries = (np.arange(n) % types).astype(np.int8)

    def moment(time, answered, count, score):
        numbers = {"time": time, "answered": answered, "count": count, "score": score}
        return state.replace(
            value_cards=values, query_cards=queries, **{name: np.int32(value) for name, value in numbers.items()}
        )

    return [
        moment(0, 0, 0, 0),
        moment(20, 10, 4, 7),  # a second row of history
        moment(100, n - 1, n, 18),  # all cards but one, the highest count
        moment(126, n, 13, n),  # after the last answer: no cards
    ]


FAMILY = Family(
    limits=tuple(n + MOVES for n in CARDS),
    fields=fields,
    bounds=lambda level: (0.0, 1.0),
    score_color=SCORE,
    name_color=NAME,
    palette=frozenset({CANVAS, BOARD, SCORE, COUNTER, NAME, RED, BLACK, FACE, BORDER}),
    step=step,
    check_fresh=check_fresh,
    draws=draws,
    games=games,
    possible=possible,
    equal_secrets=equal_secrets,
    hidden=hidden,
    shown=shown,
    cues={
        "the counter": blank(68, 1, 124, 16),
        "the value card": blank(0, 0, 14, 22),
        "the query card": blank(114, 0, 128, 22),
        "the history": blank(19, 19, 109, 114),
        "the query cards to come": blank(112, 40, 128, 112),
    },
    gallery=gallery,
)
