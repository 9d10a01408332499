"""contamination.py: what an agent without memory shows, a slow replay, the measures by hand, what is written."""

import csv
import dataclasses
import functools

import jax
import numpy as np
import pytest
from scipy import stats
from untrained_agents import agent_in, bold, untrained

import contamination
from contamination import Args, UserError

ARGS = Args(episodes=3, steps=6, at=2, first=4, sigma=(0.1, 1.0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@functools.lru_cache
def agent_of(folder, name="pqn_rnn", **changes):
    return agent_in("contamination", untrained(name, folder, **changes))


def found_of(agent, kind, args=ARGS):
    trajectories = contamination.record(agent, jax.random.key(0), args.episodes, 12)
    return contamination.contaminate(agent, trajectories, kind, args)


PIXELS = {"env_id": "SkittlesEasy", "partial_obs": True}


@pytest.mark.parametrize(
    ("name", "changes"),
    [("pqn_mlp", PIXELS), ("ppo_mlp", {}), ("pqn_rnn", {"memory": "MLP"}), ("ppo_continuous_action", {})],
)
@pytest.mark.parametrize("kind", ["noise", "permutation"])
def test_without_memory_nothing_is_left_after_the_frame(folder, name, changes, kind):
    """Exactly zero, whatever the strength."""
    effects = found_of(agent_of(folder, name, **changes), kind).effects
    defined = {measure: values for measure, values in effects.items() if not np.isnan(values).all()}
    assert set(defined) == {"ppo_mlp": {"kl", "flips"}, "ppo_continuous_action": {"kl"}}.get(
        name, {"relative_values", "flips"}
    )
    for measure, values in defined.items():
        assert values.shape[1] == 7 and not np.nansum(np.abs(values[:, 1:]))
        assert measure == "flips" or (np.nanmax(values[:, 0], axis=1) > 0).all()


@pytest.mark.parametrize(("name", "kind"), [("pqn_rnn", "noise"), ("pqn_rnn", "permutation"), ("ppo_rnn", "noise")])
def test_the_replay_equals_a_slow_one(folder, name, kind):
    """One episode, one version after the other, the whole sequence at once."""
    agent = bold(agent_of(folder, name), 100 if name == "ppo_rnn" else 1)
    trajectories = contamination.record(agent, jax.random.key(0), 3, 12)
    args = dataclasses.replace(ARGS, sigma=(10.0, 100.0))
    found = contamination.contaminate(agent, trajectories, kind, args)
    changed = 3 if kind == "noise" else 4
    network = agent.script.make_actor(agent.args)[0]
    obs = np.stack([contamination.observations(agent, x)[:changed] for x in trajectories], axis=1)
    rng = np.random.default_rng([0, ("noise", "permutation").index(kind)])
    versions = contamination.noisy(obs, args.sigma, 2, rng) if kind == "noise" else contamination.shuffled(obs, 4, rng)
    forward = jax.jit(lambda carry, *met: agent.script.forward(network, agent.params, carry, *met)[1])
    for b, trajectory in enumerate(trajectories):
        whole = contamination.observations(agent, trajectory)
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
            else:
                policies = [np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (outputs[0], outputs[v])]
                measure, want = "kl", (policies[0] * np.log(policies[0] / policies[1])).sum(axis=1)
            effect = found.effects[measure][v - 1, :, b]
            np.testing.assert_allclose(effect[: len(want)], want, rtol=1e-2, atol=1e-9 if measure == "kl" else 1e-6)
            assert want[1:].max() > (1e-7 if measure == "kl" else 1e-4) and np.isnan(effect[len(want) :]).all()


def test_episodes_count_while_they_last(folder):
    agent = agent_of(folder)
    trajectories = contamination.record(agent, jax.random.key(0), 2, 12)
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
    (row, *_), counts = contamination.rows_of([found]), []
    assert row["episodes"] == 2 and row["agents"] == 1
    counts = [row["episodes"] for row in contamination.rows_of([found]) if row["strength"] == 0.1]
    assert counts == [2, 2, 2, 1, 1, 1, 1]
    with pytest.raises(UserError, match="--at 2: no episode"):
        contamination.contaminate(agent, [dataclasses.replace(cut, reward=cut.reward[:3])], "noise", ARGS)


def test_noise_and_shuffles():
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (6, 2, 8, 8, 3)).astype(np.uint8)
    versions = contamination.noisy(frames, (0.1, 2.0), 3, rng)
    assert versions.shape == (3, 4, 2, 8, 8, 3) and versions.dtype == np.uint8
    np.testing.assert_array_equal(versions[0], frames[:4])
    assert (versions[:, :3] == frames[:3]).all()
    small, large = (np.abs(version[3].astype(float) - frames[3]) for version in versions[1:])
    assert 10 < small.mean() < 26 < large.mean() and versions[2, 3].min() == 0 and versions[2, 3].max() == 255
    numbers = rng.normal(size=(6, 50, 2)) * [1, 100]
    change = contamination.noisy(numbers, (0.5,), 3, rng)[1, 3] - numbers[3]
    np.testing.assert_allclose(change.std(axis=0), [0.5, 50], rtol=0.4)
    order = contamination.shuffled(frames, 5, rng)
    np.testing.assert_array_equal(order[0], frames[:5])
    for b in range(2):
        assert sorted(frame.tobytes() for frame in order[1, :, b]) == sorted(frame.tobytes() for frame in frames[:5, b])
    assert (order[1] != order[0]).any()


def test_the_measures_by_hand():
    q = np.array([[[[1.0, 3.0]], [[2.0, 2.0]]]])  # [L = 1, V = 2, B = 1, A = 2]
    found = contamination.effects_of({"q": q})
    assert found["relative_values"].item() == pytest.approx(np.sqrt(2)) and found["flips"].item() == 1
    shifted = contamination.effects_of({"q": np.array([[[[1.0, 3.0]], [[11.0, 13.0]]]])})
    assert shifted["relative_values"].item() == 0 and shifted["flips"].item() == 0
    logits = np.log([[[[0.5, 0.5]], [[0.25, 0.75]]]])
    found = contamination.effects_of({"logits": logits})
    assert found["kl"].item() == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(2 / 3))
    assert np.isnan(found["relative_values"]).all()
    mean, log_std = np.array([[[[0.0]], [[1.0]]]]), np.full((1, 2, 1, 1), np.log(2.0))
    found = contamination.effects_of({"mean": mean, "log_std": log_std})
    grid = np.linspace(-30, 30, 200_001)
    p, q = stats.norm(0, 2).pdf(grid), stats.norm(1, 2).pdf(grid)
    assert found["kl"].item() == pytest.approx(((p * np.log(p / q)).sum() * (grid[1] - grid[0])), rel=1e-4)
    assert np.isnan(found["flips"]).all()


def test_half_lives():
    assert contamination.half_life(np.array([1.0, 0.9, 0.5, 0.2])) == 2
    assert contamination.half_life(np.array([1.0, 1.2, 0.8])) is None
    assert contamination.half_life(np.array([0.0, 0.0])) == 0
    assert contamination.half_life(np.array([1.0, 0.0])) == 1


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
    assert all(float(row["at_once"]) > 0 == float(row["one_step_later"]) and row["half_life"] == "1" for row in mlp)
    with (out / "contamination.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["memory"], row["agents"]) for row in rows} == {("none", "1"), ("MinGRU", "2")}
    assert "half-life" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"sigma": (0.0,)}, "--sigma 0.0"), ({"first": 1}, "--first 1"), ({"kind": ()}, "--kind"), ({"at": -1}, "--at")],
)
def test_wrong_arguments_are_refused(changes, words):
    with pytest.raises(UserError, match=words):
        Args(**changes).checked()
