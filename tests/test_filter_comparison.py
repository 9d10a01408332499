"""Distances between filters: matching, groups, checkpoints over time, refusals, pictures."""

import csv
import dataclasses
import itertools
import shutil

import jax
import numpy as np
import pytest
from PIL import Image
from scripts import usually
from untrained_agents import agent_in, untrained

import filter_comparison
from filter_comparison import Args, layers_of, matched
from popgym_arcade.analysis.agents import load_agent
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.networks.encoding import merge
from popgym_arcade.baselines.running.checkpoints import save_checkpoint

PIXELS = {"env_id": "CartPoleEasy"}


def chain(seed=0):
    """Two layers, of which the second reads the first."""
    rng = np.random.default_rng(seed)
    return {"Dense_0": rng.normal(size=(6, 3, 3, 3)), "Dense_1": rng.normal(size=(5, 2, 2, 6))}


def test_distances_by_index_are_those_of_a_loop():
    one, other = chain(0), chain(1)
    for layer, (order, distances) in matched(one, other, layers_of("patch"), "index").items():
        assert (order == np.arange(len(order))).all()
        for i, found in enumerate(distances):
            weights = zip(one[layer][i].flat, other[layer][i].flat, strict=True)
            assert found == pytest.approx(sum((a - b) ** 2 for a, b in weights))


def test_the_hungarian_method_finds_the_best_of_all_orders():
    one, other = chain(0), chain(1)
    order, distances = matched(one, other, layers_of("patch"), "hungarian")["Dense_0"]
    squares = [[np.square(a - b).sum() for b in other["Dense_0"]] for a in one["Dense_0"]]
    best = min(sum(squares[i][k] for i, k in enumerate(each)) for each in itertools.permutations(range(6)))
    assert distances.sum() == pytest.approx(best) and sorted(order) == list(range(6))
    by_index = matched(one, other, layers_of("patch"), "index")["Dense_0"][1]
    assert distances.sum() < by_index.sum()


def test_networks_that_differ_only_in_their_order_have_no_distance():
    """The second layer's input channels follow the first layer's filters."""
    one, order = chain(), np.array([3, 1, 5, 0, 2, 4])
    other = {"Dense_0": one["Dense_0"][order], "Dense_1": one["Dense_1"][[4, 2, 0, 1, 3]][..., order]}
    for _, distances in matched(one, other, layers_of("patch"), "hungarian").values():
        np.testing.assert_allclose(distances, 0, atol=1e-12)
    assert all(distances.sum() > 1 for _, distances in matched(one, other, layers_of("patch"), "index").values())


def test_layers_that_are_added_share_an_order():
    """A residual network whose channels change places consistently is the same network."""
    rng, layers = np.random.default_rng(0), layers_of("impala")
    assert [layer.name for layer in layers] == [f"Conv_{i}" for i in range(15)]
    sizes = {name: 4 if int(name[5:]) < 5 else 6 for name in (layer.name for layer in layers)}
    one = {x.name: rng.normal(size=(sizes[x.name], 3, 3, sizes.get(x.reads, 3))) for x in layers}
    orders = {}
    for layer in layers:
        orders[layer.name] = orders.get(layer.adds_to, rng.permutation(sizes[layer.name]))
    orders[""] = np.arange(3)
    other = {x.name: one[x.name][orders[x.name]][..., orders[x.reads]] for x in layers}
    for _, distances in matched(one, other, layers, "hungarian").values():
        np.testing.assert_allclose(distances, 0, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "encoder"),
    usually(("pqn_rnn", "paper"), of=[("ppo_mlp", "patch"), ("pqn_rnn", "paper"), ("impala_popart", "impala")]),
)
def test_every_filter_of_every_script_is_found(name, encoder, tmp_path):
    """With its weights in the places of the picture that they read, also those of a patch."""
    folder = untrained(name, tmp_path, encoder=encoder, **PIXELS)
    agent = agent_in(folder)
    filters = filter_comparison.filters_of(agent)
    assert list(filters) == [("", layer.name) for layer in layers_of(encoder)]
    params = agent.params["params"]
    if encoder == "patch":
        first = filters["", "Dense_0"]
        assert first.shape == (16, 4, 4, 3) and filters["", "Dense_1"].shape == (32, 2, 2, 16)
        patch = jax.random.normal(jax.random.key(0), (1, 4, 4, 3))
        answers = merge(patch, 4)[0, 0, 0] @ params["encode"]["Dense_0"]["kernel"]
        np.testing.assert_allclose((first * np.asarray(patch)).sum(axis=(1, 2, 3)), answers, rtol=1e-4, atol=1e-4)
    else:
        kernel = np.asarray(params["encode"]["Conv_1"]["kernel"])
        np.testing.assert_array_equal(filters["", "Conv_1"][2], kernel[..., 2])
    towers = {"actor": params, "critic": params}  # of a script of one's own, each with an encoder
    found = filter_comparison.filters_of(dataclasses.replace(agent, params={"params": towers}))
    assert list(found) == [(tower, layer.name) for tower in towers for layer in layers_of(encoder)]
    np.testing.assert_array_equal(found["critic", layers_of(encoder)[0].name], next(iter(filters.values())))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs with two seeds each; the second has two checkpoints and other filters."""
    folder = tmp_path_factory.mktemp("runs")
    first = untrained("impala_popart", folder, num_seeds=2, **PIXELS)
    second = untrained("impala_popart", folder, num_seeds=2, value_normalization="popart", **PIXELS)
    agent = load_agent(second)
    save_checkpoint(second, agent.saved, 128, {"params": jax.tree.map(lambda x: 2 * x, agent.params)})
    return first, second


def rows_in(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_pairs_groups_and_steps(runs, tmp_path):
    out = filter_comparison.main(Args(runs=tuple(map(str, runs)), out=str(tmp_path / "out"), matching=("index",)))
    rows = rows_in(out / "distances.csv")
    pairs = {(r["run_a"], r["seed_a"], r["step_a"], r["run_b"], r["seed_b"], r["step_b"]) for r in rows}
    a, b = (run.name for run in runs)
    steps = [("0", "0"), ("64", "64")]
    assert pairs == {
        *((a, "0", s, a, "1", t) for s, t in steps),
        *((b, "0", s, b, "1", t) for s, t in (*steps, ("128", "128"))),
        *((a, i, s, b, j, t) for i in "01" for j in "01" for s, t in (*steps, ("64", "128"))),
    }
    last = {(r["run_a"], r["step_a"], r["run_b"], r["step_b"]) for r in rows if r["step"] == "last"}
    assert last == {(a, "64", a, "64"), (b, "128", b, "128"), (a, "64", b, "128")}
    assert {row["group_a"] for row in rows} == {"value_normalization none", "value_normalization popart"}
    # of untrained agents seed 1 is twice seed 0, and the last checkpoint twice the one before
    kernel = np.asarray(load_agent(runs[0]).params["params"]["encode"]["Dense_0"]["kernel"][0])
    norm = float(np.square(kernel.astype(float)).sum())
    distance = {
        (r["seed_a"], r["seed_b"], r["step_b"]): float(r["distance_sum"])
        for r in rows
        if r["layer"] == "Dense_0" and (r["run_a"], r["run_b"], r["step_a"]) == (a, b, "64")
    }
    assert distance["0", "0", "64"] == 0
    assert distance["0", "1", "64"] == pytest.approx(norm) and distance["0", "1", "128"] == pytest.approx(9 * norm)
    summary = {
        (r["group_a"], r["group_b"], r["step"]): r for r in rows_in(out / "summary.csv") if r["layer"] == "Dense_0"
    }
    both = summary["value_normalization none", "value_normalization popart", "64"]
    assert both["pairs"] == "4" and float(both["distance_sum"]) == pytest.approx(norm / 2)
    assert float(both["distance_mean"]) == pytest.approx(norm / 2 / 16)
    assert float(both["low"]) == 0 and float(both["high"]) == pytest.approx(norm / 16)
    assert ("value_normalization none", "value_normalization popart", "last") in summary
    moved = rows_in(out / "changes.csv")
    assert {(r["step"], float(r["distance_sum"]) == 0) for r in moved} == {("0", True), ("64", False), ("128", False)}
    names = ["changes.png", "distances_index.png", "filters.png", "learned.png"]
    assert sorted(path.name for path in out.glob("*.png")) == names
    for name in names:
        with Image.open(out / name) as picture:
            assert len(np.unique(np.asarray(picture.convert("L")))) > 20


def test_pairs_of_one_seed_began_with_the_same_filters(runs, tmp_path):
    args = Args(runs=tuple(map(str, runs)), out=str(tmp_path / "out"), matching=("index",), pairs="same-seed")
    rows = rows_in(filter_comparison.main(args) / "distances.csv")
    a, b = (run.name for run in runs)
    assert {(r["run_a"], r["seed_a"], r["run_b"], r["seed_b"]) for r in rows} == {(a, i, b, i) for i in "01"}
    assert {float(r["distance_sum"]) for r in rows if r["step"] == "0"} == {0.0}


def test_damaged_checkpoints_are_left_out(runs, tmp_path):
    folder = shutil.copytree(runs[1], tmp_path / "damaged")
    (folder / "checkpoints" / "128" / "sha256.json").unlink()
    found = filter_comparison.snapshots_of([folder], Args(runs=()))
    assert [(each.agent.args.seed, each.step) for each in found] == [(0, 0), (1, 0), (0, 64), (1, 64)]


def test_groups_of_different_scripts_are_named_by_arguments_that_both_have(runs, tmp_path):
    agents = [load_agent(folder) for folder in (runs[0], untrained("pqn_mlp", tmp_path, **PIXELS))]
    assert filter_comparison.group_names(agents, "env_id") == ["CartPoleEasy"] * 2
    names = filter_comparison.group_names(agents, "")
    assert names[0].startswith("script impala_popart, ") and names[1].startswith("script pqn_mlp, ")
    assert "seed" not in names[0] and "run_dir" not in names[0]


REFUSED = {
    "one": ("name at least two agents", {}),
    "vectors": ("reads no frames", {"env_id": "CartPole-v1", "num_seeds": 2}),
    "two numbers": ("reads no frames", {"env_id": "MountainCar-v0", "num_seeds": 2}),
    "three numbers": ("reads no frames", {"env_id": "MemoryChain-bsuite", "num_seeds": 2}),
    "encoders": ("filters of different shapes", {"encoder": "paper"}),
    "by": ("--by elephant: use one of script, env_id, ", {"num_seeds": 2}),
    "seeds": ("no two of these agents have the same seed", {"num_seeds": 2}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_compared_is_refused(case, runs, tmp_path):
    words, changes = REFUSED[case]
    folders = [untrained("impala_popart", tmp_path, **(PIXELS | changes))]
    folders += [runs[0]] if case == "encoders" else []
    out = tmp_path / "out"
    flags = {"by": {"by": "elephant"}, "seeds": {"pairs": "same-seed"}}.get(case, {})
    args = Args(runs=tuple(map(str, folders)), out=str(out), step=64, **flags)
    with pytest.raises(UserError, match=words) as error:
        filter_comparison.main(args)
    assert "\n" not in str(error.value) and not out.exists()


@pytest.mark.parametrize(("changes", "words"), [({"matching": ()}, "--matching"), ({"step": -1}, "--step -1")])
def test_flags_are_checked_first(changes, words):
    with pytest.raises(UserError, match=words):
        Args(runs=("nowhere",), **changes).checked()


def test_filters_are_drawn_in_rows():
    filters = np.zeros((9, 4, 4, 3))
    filters[8, 1, 2] = 0, 3, 0
    sheet = filter_comparison.on_one_picture(filters)
    assert sheet.shape == (9, 39, 3)
    assert (sheet[6, 2] == [0.5, 1, 0.5]).all() and (sheet[5, 0] == 0.5).all() and (sheet[4] == 1).all()
