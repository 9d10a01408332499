"""benchmark/published_rules.py: every published rule in one constructed state, where ours does something else."""

import csv
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest
from families.base import DOWN, FIRE, LEFT, RIGHT, UP
from families.tetris import I, O, well
from harness import params_of, resets, take, to_numpy
from runs import called

from benchmark import published_rules as rules

ROOT = Path(__file__).parents[1]


@cache
def fresh(env_id, published, count):
    """First states of the game with a published rule."""
    return to_numpy(rules.fresh(env_id, published, 1, count, 0)[0])


def first(env_id, published=None, **fields):
    """One first state, some of its fields replaced."""
    resets_alike = published is None or "reset_state" not in vars(published)
    state = take(resets(env_id, 1) if resets_alike else fresh(env_id, published, 1), 0)
    return state.replace(**{name: np.asarray(value, getattr(state, name).dtype) for name, value in fields.items()})


@cache
def stepped(env_id, published):
    """A step of the game: state, reward, end."""
    env, params = rules.game(env_id, published), params_of(env_id)

    @jax.jit
    def step(state, action):
        _, state, reward, over, _ = env.step_env(jax.random.key(0), state, action, params)
        return state, reward, over | env.is_truncated(state, params)

    return step


def played(env_id, published, state, actions):
    """Rewards, ends, and the last state, of the actions from a state."""
    rewards, ends = [], []
    for action in actions:
        state, reward, over = stepped(env_id, published)(state, action)
        rewards.append(float(reward))
        ends.append(bool(over))
    return rewards, ends, to_numpy(state)


def here_and_there(env_id, published, actions, **fields):
    """What our rule and the published one make of the same actions from the same state."""
    return [played(env_id, rule, first(env_id, rule, **fields), actions) for rule in (None, published)]


def close(*values):
    return pytest.approx(values, abs=1e-6)


# AutoEncode


def test_the_last_card_could_be_paid_twice():
    cards = np.arange(26) % 4
    last = {"time": 100, "answered": 25, "selected": cards[0], "cards": cards}
    (paid, ends, _), (twice, later, _) = here_and_there("AutoEncodeEasy", rules.LastCardTwice, [FIRE, FIRE], **last)
    assert paid[0] == pytest.approx(1 / 26) and ends[0]
    assert twice == close(1 / 26, 1 / 26) and later == [False, True]
    _, (rewards, ends, _) = here_and_there("AutoEncodeEasy", rules.LastCardTwice, [UP, UP], time=259)
    assert ends == [False, True] and rewards == [0, 0]  # the time limit is one step late too


def test_the_first_answer_was_forced():
    cards = np.full(26, 2)
    now = {"time": 26, "selected": 1, "cards": cards}
    (here, _, ours), (there, _, theirs) = here_and_there("AutoEncodeEasy", rules.ForcedFirstAnswer, [LEFT, UP], **now)
    assert here == [0, 0] and ours.answered == 0
    assert there == close(1 / 26, 0) and theirs.answered == 1 and theirs.selected == ours.selected == 2


def test_fire_was_no_action_of_autoencode():
    env = rules.game("AutoEncodeEasy", rules.FourActions)
    assert (env.num_actions, env.action_space().n) == (4, 4)
    states = resets("AutoEncodeEasy", 500)
    for published, greatest in ((None, FIRE), (rules.FourActions, RIGHT)):
        env = rules.game("AutoEncodeEasy", published)
        assert rules.at_random(env, states, None, jax.random.key(0)).max() == greatest


# BattleShip and MineSweeper


@pytest.mark.parametrize(("env_id", "most"), [("BattleShipEasy", 32), ("MineSweeperEasy", 8)])
def test_one_more_shot_followed_the_last_repeat(env_id, most):
    known = {"fired": np.ones((8, 8))} if most == 32 else {"revealed": np.ones((4, 4)), "mines": np.zeros((4, 4))}
    actions = [FIRE, LEFT, RIGHT, FIRE]
    (here, ends, _), (there, later, last) = here_and_there(
        env_id, rules.LateCutOff, actions, repeats=most - 1, x=1, **known
    )
    assert here[0] == there[0] == there[3] == pytest.approx(-1 / most) and there[1:3] == [0, 0]
    assert ends[0] and later == [False, False, False, True] and last.repeats == most + 1


@pytest.mark.parametrize("env_id", ["BattleShipEasy", "MineSweeperEasy"])
def test_no_start_was_in_the_last_row_or_column(env_id):
    here, there = (fresh(env_id, rule, 500) for rule in (None, rules.NoStartAtTheEdge))
    size = rules.game(env_id).size
    for mine, theirs in ((here.x, there.x), (here.y, there.y)):
        assert set(mine.tolist()) == set(range(size)) and set(theirs.tolist()) == set(range(size - 1))
        np.testing.assert_array_equal(theirs, np.where(mine < size - 1, mine, theirs))  # else the same start


def test_a_shot_at_the_limit_did_not_end_minesweeper():
    last = {"time": 31, "mines": np.zeros((4, 4))}
    here, there = here_and_there("MineSweeperEasy", rules.ShotAtTheLimit, [FIRE, FIRE], **last)
    assert here[1][0] and there[1] == [False, True] and there[0] == close(1 / 14, -1 / 8)
    assert here_and_there("MineSweeperEasy", rules.ShotAtTheLimit, [UP], **last)[1][1] == [True]


# Breakout


def test_a_second_brick_was_deleted_without_pay():
    """The ball meets a brick in the step after another."""
    bricks = np.zeros((20, 10))
    bricks[2, 5] = bricks[1, 0] = 1
    now = {"ball_y": 3, "ball_x": 4, "ball_dir": 1, "strike": True, "bricks": bricks}
    (here, _, ours), (there, _, theirs) = here_and_there("BreakoutEasy", rules.UnpaidBricks, [UP], **now)
    assert here == there == [0] and (ours.score, theirs.score) == (0, 0)
    assert ours.bricks[2, 5] and not theirs.bricks[2, 5] and theirs.bricks[1, 0]
    bricks[1, 0] = 0  # the last brick: the game ends
    assert here_and_there("BreakoutEasy", rules.UnpaidBricks, [UP], **now | {"bricks": bricks})[1][1] == [True]


def test_the_paddle_was_partly_off_the_board():
    """A ball that comes down in column 4 meets the paddle here alone, unless it was moved."""
    now = {"ball_y": 18, "ball_x": 4, "ball_dir": 3, "bricks": first("BreakoutEasy").bricks}
    (_, ends, _), (lost, later, _) = here_and_there("BreakoutEasy", rules.PaddleOffTheBoard, [UP], **now)
    assert ends == [False] and later == [True] and lost == [-1]
    _, (_, ends, moved) = here_and_there("BreakoutEasy", rules.PaddleOffTheBoard, [RIGHT], **now)
    assert ends == [False] and moved.paddle_x == 4


# CartPole


def test_an_unpaid_step_followed_the_end_of_cartpole():
    leaves = {"x": 2.39, "x_dot": 3}
    here, there = here_and_there("CartPoleEasy", rules.DeadStep, [UP, UP], **leaves)
    assert here[0][0] == pytest.approx(1 / 200) and here[1][0]
    assert there[0] == close(1 / 200, 0) and there[1] == [False, True]
    _, (rewards, ends, _) = here_and_there("CartPoleEasy", rules.DeadStep, [UP, UP], time=199)
    assert rewards == close(1 / 200, 0) and ends == [False, True]


def test_cartpole_had_as_many_actions_as_steps():
    """All but two of them coast."""
    games = [rules.game(f"CartPole{level}", rules.ActionsLikeSteps) for level in rules.LEVELS]
    assert [game.num_actions for game in games] == [200, 400, 600]
    for action in (UP, 150):
        _, (_, _, state) = here_and_there("CartPoleEasy", rules.ActionsLikeSteps, [action])
        assert abs(state.x_dot - first("CartPoleEasy").x_dot) < 0.01


# CountRecall


def test_the_counter_had_no_bounds():
    (_, _, ours), (_, _, theirs) = here_and_there("CountRecallEasy", rules.UnboundedCounter, [DOWN, DOWN, UP])
    assert (ours.count, theirs.count) == (1, -1)
    assert here_and_there("CountRecallEasy", rules.UnboundedCounter, [UP], count=26)[1][2].count == 27


# Navigator


def test_the_last_step_of_navigator_paid_nothing():
    tnt = np.zeros((8, 8))
    tnt[0, 1] = 1
    now = {"time": 63, "x": 0, "y": 0, "tnt": tnt, "treasure_x": 0, "treasure_y": 0}
    for action, reward in ((FIRE, 1), (RIGHT, -0.5), (DOWN, -0.5 / 64)):
        (here, _, _), (there, ends, last) = here_and_there("NavigatorEasy", rules.LastStepForNothing, [action], **now)
        assert here == close(reward) and there == [0] and ends == [True] and last.score == 0
    here, there = here_and_there("NavigatorEasy", rules.LastStepForNothing, [FIRE], **now | {"time": 62})
    assert here[0] == there[0] == [1]


def test_navigators_treasure_was_almost_always_in_the_same_place():
    """And the player could start on it or on a TNT, which fire did not set off."""
    count, size = 2_000, 8
    states = fresh("NavigatorEasy", rules.RowsAndColumnsApart, count)
    assert len(set((size * states.treasure_y + states.treasure_x).tolist())) < 12
    on_tnt = states.tnt[np.arange(count), states.y, states.x]
    on_treasure = (states.x == states.treasure_x) & (states.y == states.treasure_y)
    replaced = states.tnt.sum((1, 2)) == rules.NUM_TNT - 1
    for share, expected in ((on_tnt, 0.083), (on_treasure, 0.019), (replaced, 0.097)):  # as counted by hand
        assert abs(share.mean() - expected) < 4 * (expected / count) ** 0.5
    assert not states.tnt[np.arange(count), states.treasure_y, states.treasure_x].any()
    state = take(states, np.flatnonzero(on_tnt)[0])
    assert played("NavigatorEasy", None, state, [FIRE])[1] == [True]
    assert played("NavigatorEasy", rules.RowsAndColumnsApart, state, [FIRE])[1] == [False]


# Tetris

TO_THE_GROUND = [UP, *[LEFT] * 5, *[DOWN] * 5]  # an upright I falls into the well


def tetris(published, state, actions, **fields):
    """Played from that state, with the fields that the published rule adds."""
    return played("TetrisEasy", published, first("TetrisEasy", published, **vars(state) | fields), actions)


def test_rows_beyond_ten_were_paid():
    state = well(first("TetrisEasy", piece=I), 4)
    for score, here, there, over in ((9, 0.1, 0.4, True), (5, 0.4, 0.4, False)):
        for published, expected in ((None, here), (rules.RowsBeyondTen, there)):
            rewards, ends, last = tetris(published, state, TO_THE_GROUND, score=score)
            assert rewards[-1] == pytest.approx(expected) and ends[-1] == over and not any(ends[:-1])
            assert last.score == min(score + 4, 10)


@pytest.mark.parametrize(("env_id", "twice", "previews"), [("TetrisEasy", 2, 3), ("TetrisMedium", 1, 2)])
def test_the_first_bag_was_no_permutation(env_id, twice, previews):
    here, there = (first(env_id, rule) for rule in (None, rules.BrokenFirstBag))
    assert len(set(here.bag.tolist())) == 7 and len(set(there.bag.tolist())) == 7 - twice
    assert there.bag[: 1 + previews].tolist() == [there.piece, *there.next_pieces]
    assert there.bag[-twice:].tolist() == there.bag[:twice].tolist()


@pytest.mark.parametrize(
    ("roof", "y", "action", "leapt"), [(slice(3, 7), 7, DOWN, 10), (slice(7, 8), 8, RIGHT, 10), (slice(0), 0, DOWN, 1)]
)
def test_pieces_leapt_over_roofs(roof, y, action, leapt):
    """A flat I on Hard: dropped on a roof of one row; pushed over one; dropped in its first step, by one cell."""
    board = np.zeros((20, 10))
    board[10, roof] = 1
    state = {"board": board, "piece": I, "rotation": 0, "x": 3, "y": y}
    (_, _, ours), (_, _, theirs) = here_and_there("TetrisHard", rules.LeapingPieces, [action], **state)
    assert theirs.y == leapt and not theirs.board[9].any()
    assert (ours.board[9].sum() == 4 * (I + 1) and ours.y == 0) if y else ours.y == 3


def test_rows_were_paid_one_step_late():
    state = well(first("TetrisEasy", piece=I), 4)
    actions = [*TO_THE_GROUND, FIRE, FIRE]
    for score, over in ((0, False), (6, True)):
        here, ends, _ = tetris(None, state, actions, score=score)
        there, later, _ = tetris(rules.PaidLate, state, actions, score=score)
        assert here[10] == there[11] == pytest.approx(0.4) and there[10] == 0 == here[11] == there[12]
        assert ends[10] == over and later[10:12] == [False, over]
    last = 3000 - len(TO_THE_GROUND)
    here, there = (tetris(rule, state, TO_THE_GROUND, time=last) for rule in (None, rules.PaidLate))
    assert sum(here[0]) == pytest.approx(0.4) and sum(there[0]) == 0 and here[1] == there[1]
    assert sum(tetris(rules.PaidLate, state, actions[:-1], time=last - 1)[0]) == pytest.approx(0.4)


def test_a_top_out_was_noticed_one_step_late():
    board = np.zeros((20, 10))
    board[1:3, 3:7] = 1
    for time, owed in ((0, -1), (2998, 0)):
        state = first("TetrisEasy", piece=O, x=-1, y=17, board=board, time=time)
        here, ends, _ = tetris(None, state, [FIRE, FIRE])
        there, later, _ = tetris(rules.PaidLate, state, [FIRE, FIRE])
        assert here[0] == -1 and ends[0] and there == [0, owed] and later == [False, True]


# The script


def saved_rows():
    with (ROOT / "benchmark/results/published_rules.csv").open() as file:
        return list(csv.DictReader(file))


def test_every_episode_and_every_seed_is_another(monkeypatch):
    monkeypatch.setattr(rules, "CHUNK", 20)
    one, other = (rules.play("CountRecallEasy", None, rules.RANDOM, 30, seed)[0] for seed in (0, 1))
    assert len(one) == 30 and (one[:10] != one[20:]).any() and (one != other).any()


def test_the_player_who_knows_all_is_paid_for_one_card_more(monkeypatch):
    monkeypatch.setattr(rules, "CHUNK", 3)
    here, there = (rules.play("AutoEncodeEasy", rule, rules.KNOWS_ALL, 3, 0) for rule in (None, rules.LastCardTwice))
    np.testing.assert_allclose(here[0], 1, atol=1e-5)
    np.testing.assert_allclose(there[0], 1 + 1 / 26, atol=1e-5)
    assert (here[1] + 1 == there[1]).all()


def test_a_game_can_end_with_its_time_limit(monkeypatch):
    monkeypatch.setattr(rules, "CHUNK", 4)
    _, lengths = rules.play("CountRecallEasy", None, rules.RANDOM, 4, 0, np.arange(1, 5, dtype=np.int32))
    assert lengths.tolist() == [1, 2, 3, 4]


def test_the_files_hold_what_was_played(tmp_path, monkeypatch, capsys):
    here, there = np.float32([0.5, 1, 0, 0.25]), np.float32([0.5, 0, 0, 0.75])

    def play(env_id, published, player, episodes, seed, limits=None):
        return (here if published is None else there)[:episodes] + seed, np.arange(episodes)

    monkeypatch.setattr(rules, "play", play)
    args = rules.Args(env_ids=("CountRecallEasy",), episodes=4, seed=7, out=str(tmp_path / "new" / "rules"))
    rules.main(args)
    with (tmp_path / "new" / "rules.csv").open() as file:
        (row,) = csv.DictReader(file)
    texts = {"env_id": "CountRecallEasy", "published_rule": "counter without bounds", "player": "random"}
    numbers = {"episodes": 4, "here_mean": 7.4375, "there_mean": 7.3125, "difference": 0.125, "share_changed": 0.5}
    for name, values in (("here_error", here), ("there_error", there), ("difference_error", here - there)):
        numbers[name] = np.std(values, ddof=1) / 2
    assert row == texts | {name: row[name] for name in numbers}
    for name, number in numbers.items():
        assert float(row[name]) == pytest.approx(number, abs=1e-5), name
    table = (tmp_path / "new" / "rules.md").read_text()
    line = "| CountRecallEasy | counter without bounds | random | 4 | 7.4375 ± 0.2135 | 7.3125 ± 0.1875 |"
    assert f"{line} +0.1250 ± 0.3146 | 50.00% |" in table and table in capsys.readouterr().out


def test_a_limit_can_be_the_length_of_the_episode_here(monkeypatch):
    limits = []
    monkeypatch.setattr(rules, "play", lambda *args: (limits.append(args[5:]), (np.zeros(3), np.array([7, 9, 8])))[1])
    rule = rules.RULES[-1]
    rules.row(rule, "TetrisEasy", rules.LATE_GREEDY, rules.Args(episodes=3, seed=11))
    assert rules.LATE_GREEDY in rule.players and [len(each) for each in limits] == [0, 1]
    assert limits[1][0].tolist() == [7, 9, 8]


def test_saved_figures_come_out_again():
    (rule,) = [rule for rule in rules.RULES if rule.published is rules.LastStepForNothing]
    row = rules.row(rule, "NavigatorEasy", rules.LATE_TNT, rules.Args())
    assert {name: str(value) for name, value in row.items()} in saved_rows()


def test_every_rule_is_saved_and_random_play_here_is_that_of_the_other_table():
    rows = saved_rows()
    expected = [
        (env_id, rule.name, player.name) for rule in rules.RULES for env_id in rule.env_ids for player in rule.players
    ]
    assert [(row["env_id"], row["published_rule"], row["player"]) for row in rows] == expected
    with (ROOT / "benchmark/results/random_policy.csv").open() as file:
        alone = {row["env_id"]: row["return_mean"] for row in csv.DictReader(file)}
    for row in rows:
        assert row["player"] != "random" or float(row["here_mean"]) == pytest.approx(
            float(alone[row["env_id"]]), abs=1e-4
        )


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.name)
def test_the_page_has_the_measured_effects(rule):
    """Easy / Medium / Hard, to three places, in a line of the family; those of constructed games are in words."""
    section = (ROOT / "docs/published-rules.md").read_text().partition("\n## Rules\n")[2]
    lines = [line.split("|") for line in section.splitlines() if line.count("|") == 5]
    measured = {(row["env_id"], row["player"]): row for row in saved_rows() if row["published_rule"] == rule.name}
    for player in rule.players:
        for family in rule.families if player.act is not rules.planned else ():
            rows = [measured[family + level, player.name] for level in rule.levels]
            effects = [round(float(row["difference"]), 3) + 0.0 for row in rows]
            words = (
                player.name.partition(",")[0],
                " / ".join(f"{x:+.3f}" for x in effects) if any(effects) else "+0.000",
            )
            found = [line for line in lines if family in line[1] and all(word in line[4] for word in words)]
            assert found, (family, *words)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--env-ids CountRecallEazy", "is unknown: the closest are CountRecallEasy"),
        ("--env-ids SkittlesEasy", "no published rule here changes its returns"),
        ("--episodes 0", "--episodes 0: use 1 or more"),
        ("--seed -1", "--seed -1: use 0 or more"),
    ],
)
def test_bad_input_is_refused_in_one_line(tmp_path, flags, words):
    done = called(rules.__file__, *flags.split(), "--out", tmp_path / "rules")
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
