"""last_frames.py: what an agent knows that is given its last k frames, and what is written."""

import csv
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from untrained_agents import agent_in, bold, untrained

import last_frames
from last_frames import ALL, Args, Measured
from popgym_arcade.analysis.recall import recall_density
from popgym_arcade.analysis.trajectories import record
from popgym_arcade.baselines.errors import UserError

LONG = 64  # steps: longer than an episode of a fresh agent on CartPole-v1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@functools.lru_cache
def agent_of(folder, name="pqn_rnn", **changes):
    agent = agent_in(untrained(name, folder, **changes))
    return dataclasses.replace(agent, args=dataclasses.replace(agent.args, eval_episodes=4))


def in_full(agent):
    """The returns of the agent as it is."""
    return last_frames.returns_of(agent, None, 0)


@pytest.mark.usefixtures("checks_keys")
@pytest.mark.parametrize("name", ["pqn_rnn", "impala_popart"])  # the second also reads rewards
def test_with_all_frames_of_an_episode_nothing_changes(folder, name):
    agent = agent_of(folder, name)
    assert in_full(agent).max() < LONG
    np.testing.assert_array_equal(last_frames.returns_of(agent, LONG, 0), in_full(agent))


def test_without_memory_the_last_frame_is_enough(folder):
    agent = agent_of(folder, memory="MLP")
    for frames in (1, 2):
        np.testing.assert_array_equal(last_frames.returns_of(agent, frames, 0), in_full(agent))


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_an_action_depends_on_the_last_frames_alone(folder, frames):
    """Against the network, given these frames and an empty memory."""
    agent = bold(agent_of(folder, "ppo_rnn", memory="GRU"))
    begin, act = last_frames.with_last_frames(agent.script, agent.args, frames)
    network, _, _ = agent.script.make_actor(agent.args)
    act = jax.jit(act)
    watched, inputs = begin(jax.random.key(0), 2), []
    for _ in range(12):
        actor = watched.actor
        inputs.append((actor.obs, actor.prev_action, actor.start))
        watched, transition, _ = act(agent.params, watched, agent.script.POLICIES["greedy"])
        obs, prev_action, start = (jnp.stack(x) for x in zip(*inputs[-frames:], strict=True))
        carry = agent.script.initial_carry(network, 2)
        _, output = agent.script.forward(network, agent.params, carry, obs, prev_action, start)
        np.testing.assert_array_equal(transition.action, output.logits[-1].argmax(-1))


def test_an_agent_with_fewer_frames_knows_less(folder):
    """So the tests above are not about a memory on which nothing depends."""
    agent = agent_of(folder, memory="GRU")
    values = []
    for frames in (1, 2, LONG):
        begin, act = last_frames.with_last_frames(agent.script, agent.args, frames)
        watched = begin(jax.random.key(0), 1)
        for _ in range(3):
            watched, transition, _ = jax.jit(act)(agent.params, watched, agent.script.POLICIES["greedy"])
        values.append(float(transition.value[0]))
    assert len(set(values)) == 3


def test_shares_of_return_and_gradient(folder):
    agent = agent_of(folder)
    found = last_frames.measure(agent, Args(frames=(1, LONG), episodes=4, traced=3, seed=2))
    assert list(found.returns) == [1, LONG, ALL] == list(found.looked_at)
    np.testing.assert_array_equal(found.returns[LONG], found.returns[ALL])
    np.testing.assert_array_equal(found.returns[ALL], last_frames.returns_of(agent, None, 2))
    all_of_them = last_frames.measure(agent, Args(frames=(1,), episodes=1, traced=3, seed=2))
    assert all_of_them.looked_at[1].size == 1
    met = record(agent, jax.random.key(2), 3)
    np.testing.assert_allclose(found.looked_at[1], [recall_density(agent, one)[-1] for one in met])
    np.testing.assert_allclose(found.looked_at[LONG], 1)
    np.testing.assert_allclose(found.looked_at[ALL], 1)


def test_what_is_kept_is_counted_from_the_random_policy():
    returns = {frames: np.array(x) for frames, x in {1: [0.2, 0.4], 2: [0.1, 0.1], ALL: [0.5, 0.7]}.items()}
    measured = Measured(None, np.array([0.1, 0.3]), returns, dict.fromkeys(returns, np.ones(1)))
    kept = {frames: last_frames.share_kept([measured], frames) for frames in returns}
    assert kept[1][0] == pytest.approx(0.25) and kept[2][0] == pytest.approx(-0.25)
    assert kept[ALL] == (1, 1, 1)  # by definition, so its interval is a point
    nothing = dataclasses.replace(measured, random_returns=np.array([0.6, 0.6]))
    assert np.isnan(last_frames.share_kept([nothing], 1)).all()


def test_what_is_kept_is_a_ratio_of_means_over_agents():
    """An agent that hardly earns anything does not dominate, as it would in a mean of ratios."""

    def measured(kept, earned):
        return Measured(None, np.zeros(3), {1: np.full(3, kept), ALL: np.full(3, earned)}, {})

    share, low, high = last_frames.share_kept([measured(0.5, 1.0), measured(0.01, 0.001), measured(0.4, 0.8)], 1)
    assert share == pytest.approx(0.91 / 1.801) and low == pytest.approx(0.5) and high > share


def test_an_interval_is_over_agents_or_over_the_episodes_of_one():
    one, other, blind = np.array([0.0, 1.0, 2.0]), np.array([3.0, 3.0]), np.array([])
    mean, low, high = last_frames.mean_and_interval([one, blind])
    assert mean == 1 and low < 1 < high
    assert last_frames.mean_and_interval([one, other]) == (2, 1, 3)
    assert np.isnan(last_frames.mean_and_interval([blind])).all()


def test_agents_that_a_measure_leaves_out_are_counted_and_named(folder):
    """Nothing affects the last decision of one of three. Together, those of the other group earn too little."""
    agent = agent_of(folder)

    def measured(earned, *looked_at):
        returns = dict.fromkeys((1, ALL), np.full(2, earned))
        return Measured(agent, np.full(2, 0.2), returns, dict.fromkeys((1, ALL), np.array(looked_at)))

    rows = last_frames.rows_of("mine", [measured(0.5, 0.5), measured(0.1, 0.25), measured(0.7)])
    poor = last_frames.rows_of("poor", [measured(0.1, 0.5), measured(0.2, 0.5)])
    assert (rows[0]["agents"], rows[0]["looked_at_agents"], rows[0]["looked_at"]) == (3, 2, 0.375)
    assert last_frames.left_out({"mine": rows, "poor": poor}) == [
        "mine: 1 of 3 agents left out of looked at: no frame affects them",
        "poor: no share is kept, because these agents earn no more than the random policy",
    ]


def test_tables_and_picture(folder, tmp_path, capsys):
    runs = [str(untrained("pqn_rnn", folder / memory, memory=memory, num_seeds=2)) for memory in ("GRU", "MLP")]
    out = last_frames.main(Args(runs=tuple(runs), frames=(1, 2), episodes=2, traced=1, out=str(tmp_path / "out")))
    with (out / "last_frames.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["memory"], row["frames"], row["agents"], row["episodes"]) for row in rows] == [
        (memory, frames, "2", "4") for memory in ("GRU", "MLP") for frames in ("1", "2", ALL)
    ]
    with (out / "agents.csv").open() as file:
        agents = list(csv.DictReader(file))
    assert len(agents) == 12 and list(agents[0]) == list(last_frames.AGENT_COLUMNS)
    for row in rows:
        own = [each for each in agents if (each["group"], each["frames"]) == (row["group"], row["frames"])]
        assert float(row["mean_return"]) == pytest.approx(np.mean([float(each["mean_return"]) for each in own]))
        assert float(row["mean_return_low"]) <= float(row["mean_return"]) <= float(row["mean_return_high"])
    assert {row["looked_at"] for row in rows if row["memory"] == "MLP"} == {"1.0"}
    assert (out / "last_frames.png").read_bytes().startswith(b"\x89PNG")
    assert sum("pqn_rnn, GRU" in line for line in capsys.readouterr().out.splitlines() if "agents" not in line) == 3


def test_a_script_without_memory_is_refused(folder):
    run = untrained("pqn_mlp", folder / "mlp")
    with pytest.raises(UserError, match="this agent only knows the last frame"):
        last_frames.main(Args(runs=(str(run),)))


@pytest.mark.parametrize(
    "frames, words", [((), "use numbers from 1"), ((1, 1), "name each once"), ((4, 0), "--frames 4 0")]
)
def test_wrong_numbers_of_frames_are_refused(frames, words):
    with pytest.raises(UserError, match=words):
        Args(frames=frames).checked()
