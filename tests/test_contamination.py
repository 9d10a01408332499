"""contamination.py: agents without memory, a slow replay, the measures by hand, what is written."""

import csv
import dataclasses
import functools

import jax
import numpy as np
import pytest
from scipy import stats
from scripts import usually
from untrained_agents import agent_in, bold, untrained

import contamination
from contamination import Args
from popgym_arcade.analysis.trajectories import observations, record
from popgym_arcade.baselines.errors import UserError

ARGS = Args(episodes=3, steps=6, at=2, first=4, sigma=(0.1, 1.0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@functools.lru_cache
def agent_of(folder, name="pqn_rnn", **changes):
    return agent_in(untrained(name, folder, **changes))


def found_of(agent, kind, args=ARGS):
    trajectories = record(agent, jax.random.key(0), args.episodes, 12)
    return contamination.contaminate(agent, contamination.reaching(trajectories, kind, args), kind, args)


PIXELS = {"env_id": "SkittlesEasy", "partial_obs": True}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("pqn_mlp", PIXELS),
        ("ppo_mlp", {}),
        pytest.param("pqn_rnn", {"memory": "MLP"}, marks=pytest.mark.thorough),
        pytest.param("ppo_continuous_action", {}, marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize("kind", usually("noise", of=("noise", "permutation")))
def test_without_memory_nothing_remains_after_the_frame(folder, name, changes, kind):
    """Exactly zero, whatever the strength."""
    effects = found_of(agent_of(folder, name, **changes), kind).effects
    defined = {measure: values for measure, values in effects.items() if not np.isnan(values).all()}
    assert set(defined) == {"ppo_mlp": {"kl", "flips"}, "ppo_continuous_action": {"kl"}}.get(
        name, {"relative_values", "flips"}
    )
    for measure, values in defined.items():
        assert values.shape[1] == 7 and not np.nansum(np.abs(values[:, 1:]))
        assert measure == "flips" or (np.nanmax(values[:, 0], axis=1) > 0).all()


@pytest.mark.parametrize(
    ("name", "kind"),
    usually(("pqn_rnn", "noise"), of=[("pqn_rnn", "noise"), ("pqn_rnn", "permutation"), ("ppo_rnn", "noise")]),
)
def test_the_replay_equals_a_slow_one(folder, name, kind):
    """One episode, one version after the other, the whole sequence at once."""
    agent = bold(agent_of(folder, name), 100 if name == "ppo_rnn" else 1)
    trajectories = record(agent, jax.random.key(0), 3, 12)
    args = dataclasses.replace(ARGS, sigma=(10.0, 100.0))
    found = contamination.contaminate(agent, trajectories, kind, args)
    changed = 3 if kind == "noise" else 4
    network = agent.script.make_actor(agent.args)[0]
    obs = np.stack([observations(agent, x)[:changed] for x in trajectories], axis=1)
    rng = np.random.default_rng([0, ("noise", "permutation").index(kind)])
    if kind == "noise":
        unit = np.concatenate([x.obs for x in trajectories]).astype(float).std(axis=0)
        frames = contamination.noisy(obs[2], args.sigma, unit, rng)
        versions = np.stack([np.concatenate([obs[:2], frame[None]]) for frame in frames])
    else:
        versions = contamination.shuffled(obs, rng)
    forward = jax.jit(lambda carry, *met: agent.script.forward(network, agent.params, carry, *met)[1])
    wanted, sizes = [], []
    for b, trajectory in enumerate(trajectories):
        whole = observations(agent, trajectory)
        outputs = []
        for version in versions:
            seen = np.concatenate([version[:, b], whole[changed:]])[: changed + 6]
            met = seen, trajectory.prev_action[: changed + 6], trajectory.start[: changed + 6]
            carry = agent.script.initial_carry(network, 1)
            output = forward(carry, *(x[:, None] for x in met))
            scores = output.q if name == "pqn_rnn" else output.logits
            outputs.append(np.asarray(scores, float)[changed - 1 :, 0])
        for v in range(1, len(versions)):
            if name == "pqn_rnn":
                relative = [x - x.mean(axis=1, keepdims=True) for x in (outputs[0], outputs[v])]
                measure, want = "relative_values", np.sqrt(((relative[1] - relative[0]) ** 2).sum(axis=1))
                sizes.append(np.sqrt((relative[0] ** 2).sum(axis=1)))
            else:
                policies = [np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (outputs[0], outputs[v])]
                measure, want = "kl", (policies[0] * np.log(policies[0] / policies[1])).sum(axis=1)
            wanted.append((measure, found.effects[measure][v - 1, :, b], want))
    size = np.concatenate(sizes).mean() if sizes else 1  # every version counts the unchanged one once
    for measure, effect, want in wanted:
        least = 1e-9 if measure == "kl" else 1e-6 / size
        np.testing.assert_allclose(effect[: len(want)], want / size, rtol=1e-2, atol=least)
        assert want[1:].max() > (1e-7 if measure == "kl" else 1e-4) and np.isnan(effect[len(want) :]).all()


def test_episodes_count_while_they_last(folder):
    agent = agent_of(folder)
    trajectories = record(agent, jax.random.key(0), 2, 12)
    cut = dataclasses.replace(
        trajectories[0],
        **{
            name: jax.tree.map(lambda x: x[:5], getattr(trajectories[0], name))
            for name in ("state", "obs", "prev_action", "start", "action", "reward")
        },
    )
    found = contamination.contaminate(agent, [cut, trajectories[1]], "noise", ARGS)
    told = ~np.isnan(found.effects["relative_values"][0])  # the frame is number 2, the last of the first episode 4
    assert told[:, 0].tolist() == [True] * 3 + [False] * 4 and told[:, 1].all()
    rows = [row for row in contamination.rows_of("mine", [found]) if row["strength"] == 0.1]
    assert {(row["group"], row["agents"]) for row in rows} == {("mine", 1)}
    assert [row["episodes"] for row in rows] == [2, 2, 2, 1, 1, 1, 1]
    rows[0]["episodes"] = 3  # from there on less than half are left
    assert len(contamination.followed(rows)) == 3
    short = dataclasses.replace(cut, reward=cut.reward[:3])
    assert contamination.reaching([short, cut], "noise", ARGS) == [short, cut]
    assert contamination.reaching([short, cut], "permutation", ARGS) == [cut]


def test_a_change_that_no_episode_reaches_is_left_out_and_reported(folder, tmp_path, capsys):
    runs = tuple(str(agent_of(folder, name).folder) for name in ("pqn_mlp", "ppo_continuous_action"))
    args = dataclasses.replace(ARGS, runs=runs, at=150, out=str(tmp_path / "out"))  # CartPole is over by then
    out = contamination.main(args)
    assert capsys.readouterr().out.count("left out") == 1 and (out / "permutation.png").exists()
    with (out / "summary.csv").open() as file:
        rows = [(row["kind"], row["script"]) for row in csv.DictReader(file)]
    assert ("noise", "pqn_mlp") not in rows and ("noise", "ppo_continuous_action") in rows
    with pytest.raises(UserError, match="no episode lasts that long"):
        contamination.main(dataclasses.replace(args, runs=runs[:1], kind=("noise",), out=str(tmp_path / "no")))
    assert not (tmp_path / "no").exists()


def test_noise_and_shuffles():
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (6, 2, 8, 8, 3)).astype(np.uint8)
    versions = contamination.noisy(frames[3], (0.1, 2.0), 255.0, rng)
    assert versions.shape == (3, 2, 8, 8, 3) and versions.dtype == np.uint8
    np.testing.assert_array_equal(versions[0], frames[3])
    small, large = (np.abs(version.astype(float) - frames[3]) for version in versions[1:])
    assert 10 < small.mean() < 26 < large.mean() and versions[2].min() == 0 and versions[2].max() == 255
    numbers = np.round(rng.normal(size=(500, 2)) * [10, 1000]).astype(np.int32)
    change = contamination.noisy(numbers, (0.5,), np.array([10.0, 1000.0]), rng)[1] - numbers
    np.testing.assert_allclose(change.std(axis=0), [5, 500], rtol=0.1)
    assert np.abs(change.mean(axis=0) / [5, 500]).max() < 0.2
    order = contamination.shuffled(frames[:5], rng)
    np.testing.assert_array_equal(order[0], frames[:5])
    for b in range(2):
        assert sorted(frame.tobytes() for frame in order[1, :, b]) == sorted(frame.tobytes() for frame in frames[:5, b])
    assert (order[1] != order[0]).any()


def test_the_measures_by_hand():
    q = np.array([[[[-1.0, 1.0]], [[0.0, 0.0]]]])  # [L = 1, V = 2, B = 1, A = 2]
    lasts = np.ones((1, 1), bool)
    for scale in (1.0, 0.01):  # of the rewards that a seed learned from
        found = contamination.effects_of({"q": scale * q}, lasts)
        assert found["relative_values"].item() == pytest.approx(1) and found["flips"].item() == 1
    two = contamination.effects_of({"q": q.repeat(2, axis=2)}, np.array([[True, False]]))
    assert two["relative_values"].shape == (1, 1, 2) and np.isnan(two["relative_values"]).tolist() == [[[False, True]]]
    logits = np.log([[[[0.5, 0.5]], [[0.25, 0.75]]]])
    found = contamination.effects_of({"logits": logits}, lasts)
    assert found["kl"].item() == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(2 / 3))
    assert np.isnan(found["relative_values"]).all()
    mean, log_std = np.array([[[[0.0]], [[1.0]]]]), np.full((1, 2, 1, 1), np.log(2.0))
    found = contamination.effects_of({"mean": mean, "log_std": log_std}, lasts)
    grid = np.linspace(-30, 30, 200_001)
    p, q = stats.norm(0, 2).pdf(grid), stats.norm(1, 2).pdf(grid)
    assert found["kl"].item() == pytest.approx(((p * np.log(p / q)).sum() * (grid[1] - grid[0])), rel=1e-4)
    assert np.isnan(found["flips"]).all()


def test_half_lives():
    for means, steps in (
        ([1.0, 0.9, 0.5, 0.2], 3),
        ([1.0, 1.2, 0.8], None),
        ([0.0, 0.0], 0),
        ([1.0, 0.0], 0),  # the effect of the frame itself needs no memory
        ([0.0, 0.4, 0.1], 2),  # the largest effect can come later
        ([1.0, 0.2, 0.8, 0.1], 3),  # and come back
    ):
        assert contamination.half_life(np.array(means)) == steps


def test_the_unit_of_noise(folder):
    agent = agent_of(folder)
    trajectories = record(agent, jax.random.key(0), 2, 12)
    unit = contamination.unit_of(agent, trajectories)
    np.testing.assert_allclose(unit, np.concatenate([x.obs for x in trajectories]).std(axis=0), rtol=1e-5)
    still = [dataclasses.replace(x, obs=np.ones_like(x.obs)) for x in trajectories]
    with pytest.raises(UserError, match="never changes"):
        contamination.unit_of(agent, still)
    pixels = agent_of(folder, "pqn_mlp", **PIXELS)
    assert contamination.unit_of(pixels, record(pixels, jax.random.key(0), 1, 2)) == 255


def test_the_script_writes_tables_and_pictures(folder, tmp_path, capsys):
    runs = [agent_of(folder, "pqn_mlp", **PIXELS).folder, untrained("pqn_rnn", folder, num_seeds=2)]
    args = dataclasses.replace(ARGS, runs=tuple(map(str, runs)), out=str(tmp_path / "out"))
    out = contamination.main(args)
    pictures = {f"{runs[0].name}__pomdp__{kind}.png" for kind in ("noise", "permutation")}
    tables = {"contamination.csv", "summary.csv", "noise.png", "permutation.png"}
    assert {path.name for path in out.iterdir()} == pictures | tables
    with (out / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * 3 * 2  # agents, strengths and orders, measures
    mlp = [row for row in rows if row["memory"] == "none" and row["measure"] == "relative_values"]
    assert all(float(row["at_once"]) > 0 == float(row["one_step_later"]) and row["half_life"] == "0" for row in mlp)
    with (out / "contamination.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["memory"], row["agents"]) for row in rows} == {("none", "1"), ("MinGRU", "2")}
    assert "half-life" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("memories", "panels"),
    [
        (
            "abc",
            {f"X, {twin} observable: {memory}": {"0.3", "1"} for memory in "abc" for twin in ("fully", "partially")},
        ),
        ("abcd", {"X, fully observable": set("abcd"), "X, partially observable": set("abcd")}),
    ],
)
def test_with_many_groups_a_panel_has_a_line_for_each_agent(memories, panels):
    rows = [
        {"env_id": "X", "twin": twin, "kind": "noise", "strength": strength, "lag": lag, "episodes": 2}
        | {"group": f"X, {memory}, {twin}"}
        | {f"{measure}{what}": strength for measure in contamination.MEASURES for what in ("", "_low", "_high")}
        for memory in memories
        for twin in ("mdp", "pomdp")
        for strength in (0.3, 1.0)
        for lag in range(5)
    ]
    found = contamination.panels_of(rows)
    assert {title: set(lines) for title, lines in found.items()} == panels
    assert all([row["lag"] for row in line] == [*range(5)] for lines in found.values() for line in lines.values())
    if len(memories) > 3:  # the strongest change alone
        assert {row["strength"] for lines in found.values() for line in lines.values() for row in line} == {1.0}
    figure = contamination.draw_curves(rows, "noise")
    assert [axes.get_title("left") for axes in figure.axes[::3]] == [*panels]
    assert {text.get_text() for text in figure.legends[0].get_texts()} == set.union(*panels.values())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sigma": (0.0,)}, "--sigma 0.0"),
        ({"first": 1}, "--first 1"),
        ({"kind": ()}, "--kind"),
        ({"at": -1}, "--at"),
        ({"sigma": (1.0, 1.0)}, "name each once"),
    ],
)
def test_wrong_arguments_are_refused(changes, words):
    with pytest.raises(UserError, match=words):
        Args(**changes).checked()
