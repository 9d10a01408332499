"""ppo_selfplay.py: one network in both seats, past opponents, ratings, and matches between runs."""

import csv
import dataclasses
import errno
import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from race import NUMBERS, Guess, Race
from scripts import evaluation_program, fresh_params, programs, small, trained
from test_ppo import output_of, rollout_of
from untrained_agents import untrained

import evaluate
import ppo_mlp
import ppo_selfplay
import recall_density
from popgym_arcade.analysis.matches import load_rival
from popgym_arcade.baselines import seats
from popgym_arcade.baselines.environment import make_own
from popgym_arcade.baselines.errors import CannotWrite, UserError
from popgym_arcade.baselines.running import ratings
from popgym_arcade.baselines.running.checkpoints import saved_steps
from popgym_arcade.baselines.running.evaluation import make_keys
from popgym_arcade.environments.pong import Pong, PongEasy
from popgym_arcade.environments.two_player import check_seats, has_two_seats

PONG = {"env_id": "popgym_arcade.environments.pong:PongEasy"}
LEARNER = {"total_timesteps": 6000, "num_envs": 16, "learning_rate": 3e-3, "eval_every": 0, "checkpoint_every": 3000}


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of Race that learns what to choose, in seconds."""
    folder = tmp_path_factory.mktemp("selfplay")
    return ppo_selfplay.main(small("ppo_selfplay", run_dir=str(folder), elo_games=32, **LEARNER))


# ------------------------------------------------------------------------------------------------------------- seats


def test_players_take_turns_in_the_seats_and_agents_have_one_in_each_game():
    assert seats.agents(4).tolist() == [0, 3, 4, 7] and seats.opponents(4).tolist() == [1, 2, 5, 6]
    assert seats.is_agent(8).tolist() == [True, False, False, True, True, False, False, True]


def test_players_see_their_own_seat_and_only_legal_actions_are_chosen():
    args = small("ppo_selfplay")
    _, begin, act = ppo_selfplay.make_actor(args)
    _, params = fresh_params("ppo_selfplay", args)
    actor, act = jax.jit(begin, static_argnums=1)(jax.random.key(1), args.num_envs), jax.jit(act)
    for policy in [*range(4)] * 6:
        numbers = np.asarray(actor.env_state.numbers).reshape(-1)
        np.testing.assert_array_equal(actor.obs.seen.argmax(axis=-1), numbers)
        np.testing.assert_array_equal(actor.obs.seat, [0, 1] * args.num_envs)
        actor, transition, _ = act(params, actor, policy)
        assert (transition.action < NUMBERS).all()
        rewards = np.asarray(transition.reward).reshape(-1, 2)
        hits = (np.asarray(transition.action) == numbers).reshape(-1, 2).astype(float)
        np.testing.assert_array_equal(rewards, hits - hits[:, ::-1])


def test_the_log_probabilities_are_those_of_the_legal_actions():
    logits = seats.among_legal(jnp.array([[1.0, 2.0, 3.0]]), jnp.array([[True, False, True]]))
    want = np.exp([1, 3]) / np.exp([1, 3]).sum()
    np.testing.assert_allclose(jax.nn.softmax(logits)[0], [want[0], 0, want[1]], atol=1e-6)


@pytest.mark.parametrize("policy", [ppo_selfplay.GREEDY, ppo_selfplay.SAMPLE])
def test_in_an_evaluation_the_opponent_plays_at_random(policy):
    args = small("ppo_selfplay", num_envs=64, log_every=512)
    _, begin, act = ppo_selfplay.make_actor(args)
    _, params = fresh_params("ppo_selfplay", args)
    params = jax.tree.map(lambda x: 1e3 * x, params)  # a sample is the most probable action
    actor, act, chosen = jax.jit(begin, static_argnums=1)(jax.random.key(1), 64), jax.jit(act), []
    for _ in range(40):
        number, previous = actor.obs.seen.argmax(axis=-1), np.where(actor.start, -1, actor.prev_action)
        actor, transition, _ = act(params, actor, policy)
        chosen.append(np.stack([number, previous, transition.action]))
    number, previous, action = np.moveaxis(np.stack(chosen), 1, 0)
    some, others = seats.agents(64)[::2], seats.opponents(64)  # agents in the first seat
    for n in range(NUMBERS):
        for p in range(-1, NUMBERS):  # of the same inputs, an agent makes the same choice
            assert len(set(action[:, some][(number[:, some] == n) & (previous[:, some] == p)])) <= 1
        of_others = action[:, others][number[:, others] == n]
        np.testing.assert_allclose(np.bincount(of_others, minlength=NUMBERS) / len(of_others), 1 / NUMBERS, atol=0.06)


# ---------------------------------------------------------------------------------------------------------- learning


def test_the_loss_and_the_advantages_are_those_of_ppo_mlp():
    rollout, next_value = rollout_of()
    fields = {field.name: None for field in dataclasses.fields(ppo_selfplay.Transition)}
    fields |= {name: x for name, x in vars(rollout).items() if name in fields}
    other, output = ppo_selfplay.Transition(**fields), output_of()
    advantage = ppo_mlp.gae(rollout, next_value, 0.9, 0.8)
    np.testing.assert_array_equal(ppo_selfplay.gae(other, next_value, 0.9, 0.8), advantage)
    target = advantage + rollout.value
    args = small("ppo_mlp", clip_vloss=False)
    loss = ppo_mlp.ppo_loss(args, ppo_mlp.Output(output.logits, output.value), rollout, advantage, target)[0]
    mine = ppo_selfplay.Output(output.logits, output.value)
    assert ppo_selfplay.ppo_loss(small("ppo_selfplay"), mine, other, advantage, target)[0] == loss


def test_training_reads_the_memory_that_acting_had():
    args = small("ppo_selfplay", memory="GRU")
    _, begin, act = ppo_selfplay.make_actor(args)
    network, params = fresh_params("ppo_selfplay", args)
    actor, steps, act = jax.jit(begin, static_argnums=1)(jax.random.key(1), args.num_envs), [], jax.jit(act)
    for t in range(20):
        if t == 10:
            first = actor
        actor, transition, _ = act(params, actor, ppo_selfplay.SELF_PLAY)
        steps.append(transition)
    rollout = jax.tree.map(lambda *leaves: np.stack(leaves), *steps[10:])
    assert rollout.start.any()
    forward = jax.jit(ppo_selfplay.forward, static_argnums=0)
    _, output = forward(network, params, first.carry, rollout.obs, rollout.prev_action, rollout.start)
    log_prob = jax.nn.log_softmax(output.logits)
    taken = jnp.take_along_axis(log_prob, rollout.action[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(taken, rollout.log_prob, atol=1e-4)


def test_it_learns_and_its_ratings_rise(run):
    returns = [float(row["return_mean"]) for row in rows_of(run / "eval.csv")]
    assert abs(returns[0]) < 2 and returns[-1] > 4  # the best is 6: alone in three of four rounds
    rows = rows_of(run / "elo.csv")
    assert rows[0]["step"] == "0" and float(rows[-1]["elo"]) > float(rows[0]["elo"]) + 300
    assert all(float(row["low"]) <= float(row["elo"]) <= float(row["high"]) for row in rows)
    assert sum(float(row["elo"]) for row in rows) == pytest.approx(0, abs=0.5)
    games = rows_of(run / "elo_games.csv")
    assert len(games) == len(rows) * (len(rows) - 1) / 2
    assert {sum(int(row[name]) for name in ("wins", "draws", "losses")) for row in games} == {32}
    last = next(row for row in games if row["opponent_step"] == "0" and row["step"] == rows[-1]["step"])
    assert int(last["wins"]) >= 30 and (run / "elo.png").stat().st_size > 1000


def test_a_sum_of_points_that_is_nearly_zero_is_a_draw():
    level = np.float32(0)
    for point in (0.2, 0.2, 0.2, -0.2, -0.2, -0.2):
        level += np.float32(point)
    assert level != 0
    assert seats.results(np.array([[level, 0.2, -0.2, 1.0], [0, 0, 0, -1]])).tolist() == [[2, 1, 1], [0, 3, 1]]


def test_ratings_stop_after_a_signal(tmp_path, capsys, monkeypatch):
    def match(*_):
        os.kill(os.getpid(), signal.SIGTERM)
        return jnp.ones(4)

    monkeypatch.setattr(ratings, "rate_networks", lambda *inputs: ratings.round_robin(match, [None] * 3, inputs[-1]))
    with pytest.raises(SystemExit) as stopped:
        ratings.rate(small("ppo_selfplay"), tmp_path, None, (), 0)
    assert stopped.value.code == 128 + signal.SIGTERM
    assert f"not rated; to rate it, resume {tmp_path}" in capsys.readouterr().out


def test_a_full_disk_ends_the_ratings_with_one_line(tmp_path, monkeypatch):
    def rate_networks(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ratings, "rate_networks", rate_networks)
    with pytest.raises(CannotWrite, match=f"{tmp_path}: No space left on device"):
        ratings.rate(small("ppo_selfplay"), tmp_path, None, (), 0)


def test_a_step_that_terminates_is_not_truncated():
    class Both(Race):
        def step(self, key, state, actions, params=None):
            *result, over, _, info = super().step(key, state, actions, params)
            return *result, over, over, info

    games = seats.ParallelSeats(Both(), None)
    _, state = games.reset(jax.random.key(0), 2)
    _, _, _, terminated, truncated, _ = games.step(jax.random.key(1), state, jnp.full(4, NUMBERS))
    assert terminated.all() and not truncated.any()


def test_a_distributed_training_is_not_rated():
    with pytest.raises(UserError, match="--elo-games: a distributed run cannot be rated, use 0"):
        small("ppo_selfplay", distributed=True, elo_games=4).check()
    small("ppo_selfplay", distributed=True, elo_games=0).check()


def test_a_run_that_was_stopped_while_it_was_rated_is_rated_when_resumed(tmp_path, monkeypatch):
    args = small("ppo_selfplay", run_dir=str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(ppo_selfplay, "rate", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ppo_selfplay.main(args)
    (folder,) = tmp_path.iterdir()
    assert not (folder / "elo.png").exists()
    again = dataclasses.replace(args, resume=str(folder))
    # a run that was stopped before its first update has a checkpoint of the first network, too
    monkeypatch.setattr(ratings, "saved_steps", lambda folder: [0, *saved_steps(folder)])
    ppo_selfplay.main(again)
    steps = [row["step"] for row in rows_of(folder / "elo.csv")]
    assert steps[0] == "0" and len(steps) == len({*steps}) == 1 + len(saved_steps(folder))
    rated = (folder / "elo.csv").stat()
    ppo_selfplay.main(again)
    assert (folder / "elo.png").exists() and (folder / "elo.csv").stat() == rated


# --------------------------------------------------------------------------------------------------------- opponents


def test_past_opponents_act_by_their_own_parameters_and_nothing_is_learned_from_them():
    args = small("ppo_selfplay", opponents="past", num_envs=16, log_every=128)
    assert args.past_players.shape == (4, 2) and len(args.learners) == 24
    assert not set(args.past_players.ravel()) & set(args.learners.tolist())
    network, begin, act = ppo_selfplay.make_actor(args)
    _, params = fresh_params("ppo_selfplay", args)
    theirs = jax.tree.map(lambda x: jnp.stack([(k + 2) * x for k in range(4)]), params)
    rivals = seats.Rivals(params=theirs, players=jnp.asarray(args.past_players))
    actor = jax.jit(begin, static_argnums=1)(jax.random.key(1), 16)
    _, transition, _ = jax.jit(act)(params, actor, ppo_selfplay.SELF_PLAY, rivals)
    inputs = seats.in_time((actor.obs, actor.prev_action, actor.start))
    for k in range(5):  # the agent, then each rival
        own = params if k == 0 else jax.tree.map(lambda x, k=k: x[k - 1], theirs)
        log_prob = jax.nn.log_softmax(ppo_selfplay.forward(network, own, actor.carry, *inputs)[1].logits[0])
        players = args.learners if k == 0 else args.past_players[k - 1]
        taken = np.take_along_axis(np.asarray(log_prob), np.asarray(transition.action)[:, None], 1)[:, 0]
        np.testing.assert_allclose(taken[players], transition.log_prob[players], atol=1e-5)


def test_the_oldest_opponent_makes_room_for_the_latest_parameters():
    rivals = seats.first_rivals({"w": jnp.zeros(2)}, np.arange(6).reshape(3, 2))
    for update in range(1, 9):
        rivals = seats.with_snapshot(rivals, {"w": jnp.full(2, float(update))}, jnp.int32(update), 2)
    assert rivals.params["w"][:, 0].tolist() == [6.0, 8.0, 4.0]
    assert seats.first_rivals({"w": jnp.zeros(2)}, np.zeros((4, 0), int)) is None


def test_a_training_against_past_opponents_learns():
    args = small("ppo_selfplay", opponents="past", **LEARNER)
    state, _ = trained("ppo_selfplay", args, args.num_updates)
    found = evaluation_program("ppo_selfplay", dataclasses.replace(args, eval_episodes=64))
    returns = found(state.params, make_keys(args)[1], ppo_selfplay.GREEDY).returns
    assert returns.mean() > 4
    init, _ = programs("ppo_selfplay", dataclasses.replace(args, seed=0))
    first = init(make_keys(args)[0]).rivals.params
    assert all(
        (x != y).any() for x, y in zip(jax.tree.leaves(first), jax.tree.leaves(state.rivals.params), strict=True)
    )


# ----------------------------------------------------------------------------------------------------------- matches


def test_a_trained_agent_beats_a_fresh_one_and_itself_in_half_of_the_games(run, tmp_path):
    fresh = untrained("ppo_selfplay", tmp_path)
    for against in (fresh, run):
        out = evaluate.main(
            evaluate.Args(runs=(str(run),), against=str(against), episodes=64, sample=True, out=str(tmp_path / "out"))
        )
        (row,) = rows_of(out / "evaluate.csv")
        won, drawn, lost = (int(row[name]) for name in ("won", "drawn", "lost"))
        assert won + drawn + lost == 64 and row["against"] == against.name
        assert won > 56 if against == fresh else abs(won - lost) < 30
        assert {episode["against"] for episode in rows_of(out / "episodes.csv")} == {against.name}
        out.rename(tmp_path / against.name[-3:])


def test_seeds_play_against_the_seed_of_their_number_or_all_against_one(run, tmp_path):
    two = untrained("ppo_selfplay", tmp_path, num_seeds=2)
    found = {}
    for against in (two, run):
        args = evaluate.Args(runs=(str(two),), against=str(against), episodes=16, out=str(tmp_path / against.name[-3:]))
        rows = rows_of(evaluate.main(args) / "evaluate.csv")
        found[against] = [int(row["won"]) - int(row["lost"]) for row in rows]
    assert len(found[two]) == 2 and max(found[run]) < 0
    with pytest.raises(UserError, match="has 2 seeds, but .* has 1"):
        evaluate.main(evaluate.Args(runs=(str(run),), against=str(two)))


def test_agents_of_other_scripts_and_of_the_other_twin_take_part_and_are_filmed(tmp_path):
    mine = untrained("ppo_selfplay", tmp_path, memory="GRU", partial_obs=True, **PONG)
    limit = ("max_steps_in_episode=12",)
    for name in ("pqn_mlp", "ppo_rnn"):
        other = untrained(name, tmp_path, **PONG)
        args = evaluate.Args(runs=(str(mine),), against=str(other), env_params=limit, out=str(tmp_path / name))
        out = evaluate.main(dataclasses.replace(args, gif=True, side_by_side=name == "ppo_rnn", sample=True))
        (row,) = rows_of(out / "evaluate.csv")
        assert row["twin"] == "pomdp" and row["length_mean"] == "12.0"
        (film,) = out.glob("*.gif")
        from PIL import Image

        with Image.open(film) as frames:
            assert frames.size == ((768 if name == "ppo_rnn" else 512), 256) and frames.n_frames > 2
    args = evaluate.Args(runs=(str(other),), against=str(mine), env_params=limit, gif=True, out=str(tmp_path / "other"))
    assert len([*evaluate.main(args).glob("*.gif")]) == 1


def test_what_cannot_play_against_each_other_is_refused_in_one_line(run, tmp_path):
    pong, single = untrained("ppo_selfplay", tmp_path, **PONG), untrained("pqn_mlp", tmp_path)
    for runs, against, words in (
        (run, pong, "plays popgym_arcade.environments.pong:PongEasy, but"),
        (single, single, "CartPole-v1 is not a two-player game"),
        (run, tmp_path, "is not a run folder"),
    ):
        with pytest.raises(UserError, match=words):
            evaluate.main(evaluate.Args(runs=(str(runs),), against=str(against), out=str(tmp_path / "out")))
    guess = untrained("ppo_selfplay", tmp_path, env_id="race:Guess")
    wider = untrained("ppo_selfplay", tmp_path, env_id="race:Guess", env_params=("width=6",))
    with pytest.raises(UserError, match="it sees something else"):
        evaluate.main(evaluate.Args(runs=(str(guess),), against=str(wider), out=str(tmp_path / "out")))
    with pytest.raises(UserError, match="only evaluate.py and popgym-arcade-play"):
        recall_density.main(recall_density.Args(runs=(str(run),)))
    assert load_rival(str(run), []).name == run.name and not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------------- games of your own


def test_a_run_has_its_name_even_from_within(run, monkeypatch):
    monkeypatch.chdir(run)
    assert load_rival(".", []).name == run.name


def test_a_game_without_views_can_be_played_against_another_run(tmp_path):
    guess = [untrained("ppo_selfplay", tmp_path, env_id="race:Guess", seed=seed) for seed in (0, 1)]
    args = evaluate.Args(runs=(str(guess[0]),), against=str(guess[1]), episodes=8, out=str(tmp_path / "out"))
    assert len(rows_of(evaluate.main(args) / "episodes.csv")) == 8


def test_an_arcade_game_for_two_needs_both_methods_with_the_right_results(monkeypatch):
    assert has_two_seats(PongEasy())
    monkeypatch.setattr(Pong, "mirrored", lambda self, state: state.paddles)
    with pytest.raises(UserError, match="^--env-id popgym_arcade.environments.pong:PongEasy: "):
        make_own(PONG["env_id"], {})
    monkeypatch.delattr(Pong, "mirrored")
    assert not has_two_seats(PongEasy())


@pytest.mark.parametrize(
    ("method", "broken", "words"),
    [
        ("views", lambda self, state: jnp.zeros(4), "an observation"),
        ("legal", lambda self, state: jnp.ones((2, 3), bool), "legal returns bool[2, 3], not bool[2, 5]"),
    ],
)
def test_a_game_for_two_of_your_own_must_have_the_right_shapes(monkeypatch, method, broken, words):
    check_seats("Race", Race(), Race().default_params)
    monkeypatch.setattr(Race, method, broken)
    with pytest.raises(ValueError) as error:
        check_seats("Race", Race(), Race().default_params)
    assert words in str(error.value) and str(error.value).startswith("Race: ")


def test_a_game_with_illegal_actions_needs_its_final_state(monkeypatch):
    step = Race.step

    def broken(*args):
        *rest, info = step(*args)
        return *rest, {"final_observation": info["final_observation"]}

    monkeypatch.setattr(Race, "step", broken)
    with pytest.raises(ValueError, match="Race: a game with the method legal needs final_state in info"):
        check_seats("Race", Race(), Race().default_params)


def test_a_game_that_supplies_its_final_state_needs_views(monkeypatch):
    step = Guess.step

    def broken(*args):
        obs, state, *rest, info = step(*args)
        return obs, state, *rest, info | {"final_state": state}

    monkeypatch.setattr(Guess, "step", broken)
    with pytest.raises(ValueError, match="Guess: info holds final_state, so the game needs the method views"):
        check_seats("Guess", Guess(), Guess().default_params)


def test_rewards_of_the_wrong_shape_are_found(monkeypatch):
    step = Race.step

    def broken(*args):
        obs, state, _, *rest = step(*args)
        return obs, state, jnp.float32(0), *rest

    monkeypatch.setattr(Race, "step", broken)
    with pytest.raises(ValueError, match=r"Race: step returns rewards float32\[\], not float32\[2\]"):
        check_seats("Race", Race(), Race().default_params)
