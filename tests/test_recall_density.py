"""recall_density.py: sums, the gradient's norms against saliency.py's maps, thirds, what is written."""

import csv
import dataclasses
import functools

import jax
import numpy as np
import pytest
from untrained_agents import agent_in, bold, untrained

import evaluate
import recall_density
import saliency
from popgym_arcade.analysis.groups import in_panel
from popgym_arcade.analysis.trajectories import record
from popgym_arcade.baselines.errors import UserError
from recall_density import Args, Recall


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@functools.lru_cache
def agent_of(folder, name="pqn_rnn", **changes):
    return agent_in(untrained(name, folder, **changes))


def test_densities_of_complete_episodes_sum_to_one(folder):
    agent = agent_of(folder)
    trajectories = record(agent, jax.random.key(0), 3)
    assert all(trajectory.over for trajectory in trajectories)
    for trajectory in trajectories:
        for norm in ("l1", "l2"):
            delta = recall_density.recall_density(agent, trajectory, norm)
            assert len(delta) == len(trajectory) and delta.min() >= 0 and delta[-1] > 0
            assert delta.sum() == pytest.approx(1, abs=1e-9)
            assert sum(list(recall_density.masses(delta).values())[:3]) == pytest.approx(1, abs=1e-9)
            assert recall_density.density_of(delta, 7).mean() == pytest.approx(1, abs=1e-9)


def test_the_norm_is_the_one_of_the_saliency(folder):
    """With frames and padding: the episode of SkittlesEasy is shorter than the shortest program."""
    agent = agent_of(folder, env_id="SkittlesEasy", partial_obs=True)
    (trajectory,) = record(agent, jax.random.key(1), 1, 5)
    maps = saliency.gradient_saliency(agent, trajectory).maps[-1]
    norms = np.sqrt(maps.reshape(5, -1).sum(axis=1, dtype=float))
    np.testing.assert_allclose(recall_density.recall_density(agent, trajectory), norms / norms.sum(), rtol=1e-3)


def test_l1_is_the_sum_of_absolute_values(folder):
    agent = agent_of(folder)
    (trajectory,) = record(agent, jax.random.key(2), 1, 4)
    network = agent.script.make_actor(agent.args)[0]
    carry = agent.script.initial_carry(network, 1)

    def last(obs):
        met = obs[:, None], trajectory.prev_action[:, None], trajectory.start[:, None]
        return agent.script.forward(network, agent.params, carry, *met)[1].q[-1, 0]

    sizes = np.abs(jax.jit(jax.jacrev(last))(trajectory.obs)).sum(axis=(0, 2))  # [T]
    found = recall_density.recall_density(agent, trajectory, "l1")
    np.testing.assert_allclose(found, sizes / sizes.sum(), rtol=1e-4)


@pytest.mark.usefixtures("checks_keys")
@pytest.mark.parametrize("name", ["pqn_mlp", "ppo_continuous_action"])
def test_without_memory_everything_is_at_the_end(folder, name):
    agent = agent_of(folder, name)
    (trajectory,) = record(agent, jax.random.key(0), 1)
    delta = recall_density.recall_density(agent, trajectory)
    assert delta[-1] == 1 and not delta[:-1].any() and len(delta) > 5


def test_an_episode_in_which_nothing_matters_has_no_density(folder):
    agent = agent_of(folder)
    nothing = dataclasses.replace(agent, params=jax.tree.map(np.zeros_like, agent.params))
    (trajectory,) = record(nothing, jax.random.key(0), 1, 3)
    assert np.isnan(recall_density.recall_density(nothing, trajectory)).all()
    recall = Recall(nothing, {}, blind=1)
    row = recall_density.row_of("mine", [recall])
    assert (row["agents"], row["episodes"], row["episodes_left_out"]) == (0, 0, 1) and np.isnan(row["last"])
    second = Recall(agent, {1: np.array([0.0, 1.0])}, blind=1)
    row = recall_density.row_of("mine", [recall, second])
    assert (row["last"], row["agents"]) == (1, 1)
    assert [row["episode"] for row in recall_density.episode_rows_of(second)] == [1]


def test_a_saturated_policy_still_has_a_density(folder):
    """Its gradients are so small that their squares underflow in float32."""
    agent = bold(agent_of(folder, "ppo_rnn"), 1e3)
    (trajectory,) = record(agent, jax.random.key(0), 1, 8)
    faint = dataclasses.replace(agent, params=jax.tree_util.tree_map_with_path(faintly, agent.params))
    for each in (agent, faint):
        assert recall_density.recall_density(each, trajectory).sum() == pytest.approx(1)


def faintly(path, x):
    return 1e-25 * x if "head" in jax.tree_util.keystr(path) else x


@pytest.mark.parametrize("length", [1, 2, 11, 31, 100])
@pytest.mark.parametrize("bins", [1, 5, 10, 20])
def test_an_even_gradient_has_an_even_density(length, bins):
    np.testing.assert_allclose(recall_density.density_of(np.full(length, 1 / length), bins), 1)
    last = recall_density.density_of(np.eye(length)[-1], bins)
    assert last.mean() == pytest.approx(1) and not last[: (length - 1) * bins // length].any()


def test_thirds_are_those_of_the_paper():
    delta = np.full(101, 1 / 101)  # tau = 0, .01, ..., 1
    found = recall_density.masses(delta)
    assert [round(101 * mass) for mass in found.values()] == [33, 33, 35, 1]
    assert recall_density.masses(np.ones(1)) == {"first": 0, "middle": 0, "last": 1, "last_frame": 1}
    np.testing.assert_array_equal(recall_density.normalised_time(3), [0, 0.5, 1])


def test_the_expectation_gives_every_agent_the_same_weight(folder):
    agent = agent_of(folder)
    early, late = np.array([1.0, 0, 0]), np.array([0, 0, 1.0])
    one, other = Recall(agent, {0: early, 1: late}), Recall(agent, {0: late})
    mean, low, high = recall_density.mean_and_interval([one, other], lambda d: np.array([d[0], d[-1]]))
    np.testing.assert_allclose(mean, [0.25, 0.75])
    np.testing.assert_allclose((low, high), [[0, 0.5], [0.5, 1]])
    mean, low, high = recall_density.mean_and_interval([one], lambda d: np.array([d[0]]))
    assert mean == 0.5 and (low, high) == (0, 1)
    row = recall_density.row_of("mine", [one, other])
    assert (row["first"], row["agents"], row["episodes"], row["length_mean"]) == (0.25, 2, 3, 3)
    rows = recall_density.density_rows_of("mine", [one, other], 4)
    assert sum(row["density"] / 4 for row in rows) == pytest.approx(1)
    assert [row["tau_low"] for row in rows] == [0, 0.25, 0.5, 0.75]


def test_the_script_compares_memories(folder, tmp_path, capsys):
    runs = [
        agent_of(folder).folder,
        agent_of(folder, "pqn_mlp").folder,
        untrained("pqn_mlp", folder, num_seeds=2, seed=1),
    ]
    args = Args(runs=tuple(map(str, runs)), out=str(tmp_path / "out"), episodes=2, bins=5)
    out = recall_density.main(args)
    names = {"recall_density.csv", "density.csv", "agents.csv", "episodes.csv", "deltas.npz", "recall_density.png"}
    assert {path.name for path in out.iterdir()} == names
    with (out / "recall_density.csv").open() as file:
        rows = {row["memory"]: row for row in csv.DictReader(file)}
    assert set(rows) == {"MinGRU", "none"}
    assert [rows["none"][name] for name in ("agents", "episodes", "last", "last_frame")] == ["3", "6", "1.0", "1.0"]
    assert float(rows["MinGRU"]["last"]) < 1
    with (out / "episodes.csv").open() as file:
        lengths = [int(row["length"]) for row in csv.DictReader(file)]
    assert len(lengths) == 8
    with (out / "agents.csv").open() as file:
        agents = list(csv.DictReader(file))
    assert [(row["memory"], row["seed"], row["episodes"]) for row in agents] == [
        *[("MinGRU", "0", "2"), ("none", "0", "2"), ("none", "1", "2"), ("none", "2", "2")]
    ]
    assert [float(row["return_mean"]) for row in agents] == np.reshape(lengths, (4, 2)).mean(axis=1).tolist()
    done = evaluate.main(evaluate.Args(runs=args.runs[:1], seed=0, out=str(tmp_path / "whole"), episodes=64))
    with (done / "episodes.csv").open() as file:
        whole = [int(row["length"]) for row in csv.DictReader(file)]
    assert min(whole) <= min(lengths) and len(set(lengths)) > 1  # complete episodes, none cut short
    with np.load(out / "deltas.npz") as saved:
        assert len(saved.files) == 4
        for name, row in zip(saved.files, agents, strict=True):
            np.testing.assert_allclose(np.nansum(saved[name], axis=1), 1)
            assert float(row["first_frame"]) == pytest.approx(saved[name][:, 0].mean(), abs=1e-12)
    table = capsys.readouterr().out
    assert "MinGRU" in table and str(out) in table


def test_the_picture_has_a_row_for_each_environment_and_twin():
    shares = {"first": 0.1, "middle": 0.2, "last": 0.7, "last_frame": 0.4}
    rows = [
        {"env_id": env_id, "twin": twin, "group": f"{env_id}, pqn_rnn, {memory}, {twin}"} | shares
        for env_id, twin in (("X", "mdp"), ("X", "pomdp"), ("Y", "single"))
        for memory in ("GRU", "LRU")
    ]
    part = {"tau_low": 0.0, "tau_high": 1.0, "density": 1.0, "density_low": 0.5, "density_high": 2.0}
    figure = recall_density.draw(rows, [[part]] * len(rows))
    titles = ["X, fully observable", "X, partially observable", "Y"]
    assert [axes.get_title("left") for axes in figure.axes[::2]] == titles
    for bars, curves in zip(figure.axes[::2], figure.axes[1::2], strict=True):
        of_gru = [bar.get_bbox() for bar in bars.patches[::2]]  # each part has a bar for GRU and one for LRU
        np.testing.assert_allclose([bar.x0 for bar in of_gru], [0, 0.4, 0.7, 0.9])
        np.testing.assert_allclose([bar.width for bar in of_gru], [0.4, 0.3, 0.2, 0.1])
        assert [text.get_text() for text in bars.get_yticklabels()] == ["pqn_rnn,\nGRU", "pqn_rnn,\nLRU"]
        assert len(curves.lines) == 3  # two groups and the density of a gradient that is the same everywhere
    legends = figure.legends[0], figure.axes[1].get_legend()
    parts, groups = ([text.get_text() for text in legend.get_texts()] for legend in legends)
    assert parts == ["last frame", "rest of the last third", "middle third", "first third"]
    assert groups == ["pqn_rnn, GRU", "pqn_rnn, LRU"]


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ("X, pqn_rnn, GRU, pomdp (trained on X mdp)", "pqn_rnn, GRU (trained on X, fully observable)"),
        ("X, pqn_rnn, GRU, pomdp (trained on Y single)", "pqn_rnn, GRU (trained on Y)"),
        ("X, pqn_rnn, GRU, pomdp (a_run)", "pqn_rnn, GRU (a_run)"),
        ("X, pqn_rnn, MLP, pomdp", "pqn_rnn, MLP (no memory)"),
    ],
)
def test_a_label_in_a_panel_does_not_repeat_the_panel(group, words):
    assert in_panel({"group": group, "env_id": "X", "twin": "pomdp"}) == words


@pytest.mark.parametrize(("changes", "words"), [({"episodes": 0}, "--episodes 0"), ({"bins": 0}, "--bins 0")])
def test_wrong_arguments_are_refused(changes, words):
    with pytest.raises(UserError, match=words):
        Args(**changes).checked()
