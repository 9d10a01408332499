"""benchmark/churn.py: the churn in each tenth of a run, and what the table and the picture make of it."""

import json
from pathlib import Path

import numpy as np
import pytest
from test_report import write_events

from benchmark import churn
from popgym_arcade.analysis.tables import read_csv
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.running.churn import CHURN


def write_training(folder, memory, env_id, partial_obs, share, seeds=(0, 1)):
    """A run of 200 steps: the churn of a gradient step is `share`, plus the number of the seed, and falls to 0."""
    run = folder / f"{env_id}_{memory}_{partial_obs}"
    run.mkdir(parents=True)
    args = {"seed": seeds[0], "num_seeds": len(seeds), "total_timesteps": 200, "env_id": env_id}
    args |= {"memory": memory, "partial_obs": partial_obs}
    (run / "args.json").write_text(json.dumps({"script": "pqn_rnn", "args": args}))
    (run / "eval.csv").write_text("global_step,seed,env_id,partial_obs,policy,return_mean\n")
    for seed in seeds if share else ():
        points = [(step, step, (share + seed / 100) * (1 - step / 200)) for step in range(10, 201, 10)]
        seeded = run / f"seed_{seed}" if len(seeds) > 1 else run
        seeded.mkdir(exist_ok=True)
        names = tuple(f"charts/{name}" for name in CHURN)
        write_events(seeded, [(step, minutes, dict.fromkeys(names, value)) for step, minutes, value in points])
    return run


def test_churn_by_tenth_memory_and_twin(tmp_path):
    write_training(tmp_path / "runs", "GRU", "SkittlesEasy", True, 0.4)
    write_training(tmp_path / "runs", "GRU", "SkittlesEasy", False, 0.2)
    write_training(tmp_path / "runs", "MLP", "SkittlesEasy", True, 0.6)
    out = tmp_path / "out" / "churn"
    churn.main(churn.Args(runs=(f"{tmp_path}/runs/*",), out=str(out)))
    rows = read_csv(Path(f"{out}.csv"))
    assert len(rows) == 3 * 2 * 10
    first = next(row for row in rows if (row["memory"], row["twin"], row["seed"]) == ("GRU", "pomdp", "1"))
    assert first["tenth"] == "1" and float(first["churn_per_step"]) == pytest.approx(0.41 * (0.95 + 0.9) / 2, abs=1e-5)
    head, _, *lines = Path(f"{out}.md").read_text().splitlines()
    assert head.startswith("| memory | fully observable, one gradient step | fully observable, one rollout | partially")
    assert [line.split(" | ")[0] for line in lines] == ["| MLP (no memory)", "| GRU"]  # the most churn first
    mean = np.mean([(0.6 + seed / 100) * np.mean(1 - np.arange(10, 201, 10) / 200) for seed in (0, 1)])
    assert f"{mean:.3f} (" in lines[0]
    before = [Path(f"{out}{ending}").read_bytes() for ending in (".csv", ".md", ".png")]
    churn.main(churn.Args(csv=f"{out}.csv", out=str(out)))
    assert before == [Path(f"{out}{ending}").read_bytes() for ending in (".csv", ".md", ".png")]
    more = write_training(tmp_path / "more", "LRU", "SkittlesEasy", True, 0.5)
    churn.main(churn.Args(csv=f"{out}.csv", runs=(f"{tmp_path}/runs/*", str(more)), out=f"{out}_more"))
    both = read_csv(Path(f"{out}_more.csv"))
    assert both[: len(rows)] == rows and len(both) == len(rows) + 2 * 10  # what the table has counts once
    assert {row["memory"] for row in both[len(rows) :]} == {"LRU"}


def test_an_unfinished_training_is_left_out_and_a_run_replaces_its_rows_in_the_table(tmp_path, capsys):
    run = write_training(tmp_path / "runs", "GRU", "SkittlesEasy", True, 0.4)
    half = write_training(tmp_path / "runs", "LRU", "SkittlesEasy", True, 0.4)
    about = json.loads((half / "args.json").read_text())
    about["args"]["total_timesteps"] = 400
    (half / "args.json").write_text(json.dumps(about))
    out = str(tmp_path / "churn")
    churn.main(churn.Args(runs=(f"{tmp_path}/runs/*",), out=out))
    assert capsys.readouterr().err == f"left out, unfinished: {half}\n"
    rows = read_csv(Path(f"{out}.csv"))
    assert {row["run"] for row in rows} == {run.name}
    stale = tmp_path / "stale.csv"
    stale.write_text(Path(f"{out}.csv").read_text().replace(rows[0]["churn_per_step"], "0.9"))
    churn.main(churn.Args(csv=str(stale), runs=(str(run),), out=out))
    assert read_csv(Path(f"{out}.csv")) == rows
    with pytest.raises(UserError, match="no run has ended yet"):
        churn.main(churn.Args(runs=(str(half),), out=str(tmp_path / "none")))
    assert not list(tmp_path.glob("none*"))


def test_the_table_of_the_page_comes_from_its_file():
    folder = Path(__file__).parent.parent / "docs/figures/memory_study"
    assert churn.table(read_csv(folder / "churn.csv")) == (folder / "churn.md").read_text()


def test_the_axes_are_labelled_with_exact_percentages(tmp_path):
    write_training(tmp_path / "runs", "GRU", "SkittlesEasy", True, 0.2)  # ticks every 2.5%
    figure = churn.draw(churn.collect((f"{tmp_path}/runs/*",)))
    figure.canvas.draw()
    for axis in (figure.axes[0].yaxis, figure.axes[1].xaxis):
        labels = [float(label.get_text().removesuffix("%")) / 100 for label in axis.get_ticklabels()]
        np.testing.assert_allclose(labels, axis.get_ticklocs(), atol=1e-9)


def test_a_single_seed_has_no_interval_and_a_tenth_without_a_point_no_churn(tmp_path):
    run = write_training(tmp_path / "runs", "GRU", "SkittlesEasy", True, 0.4, seeds=(3,))
    rows = list(churn.rows_of(run))
    assert [row["seed"] for row in rows] == [3] * 10
    assert churn.of_memory(rows, "GRU", "pomdp", "churn_per_step").low is None
    assert churn.of_memory(rows, "GRU", "mdp", "churn_per_step") is None
    curve = [type("Point", (), {"step": step, "value": 1.0}) for step in (100, 200)]
    assert np.isfinite(churn.tenths(curve, 200)).nonzero()[0].tolist() == [4, 9]


def test_what_cannot_be_shown_is_refused(tmp_path):
    write_training(tmp_path / "runs", "GRU", "SkittlesEasy", True, share=None, seeds=(0,))
    write_training(tmp_path / "chain", "GRU", "MemoryChain-bsuite", False, 0.4)
    several = write_training(tmp_path / "several", "GRU", "SkittlesEasy", True, 0.4)
    about = json.loads((several / "args.json").read_text())
    about["args"]["env_ids"] = [about["args"].pop("env_id")]
    (several / "args.json").write_text(json.dumps(about))
    for again in ("a", "b"):
        write_training(tmp_path / again, "GRU", "SkittlesEasy", True, 0.4)
    for args, error in (
        ({"runs": (f"{tmp_path}/chain/*",)}, "MemoryChain-bsuite has no twins to compare"),
        ({"runs": (f"{tmp_path}/several/*",)}, "a run of several games has no twins to compare"),
        ({"runs": (f"{tmp_path}/[ab]/*",)}, "GRU SkittlesEasy pomdp 0 appears twice"),
        ({"runs": (f"{tmp_path}/runs/*",)}, "train it with --log-churn"),
        ({"runs": (f"{tmp_path}/none/*",)}, "no run folder there"),
        ({"csv": f"{tmp_path}/none.csv"}, "--csv .*none.csv: No such file"),
        ({"csv": f"{several}/eval.csv"}, "--csv .*eval.csv: it lacks churn_per_rollout, churn_per_step, memory"),
        ({}, "give --runs or --csv"),
    ):
        with pytest.raises(UserError, match=error):
            churn.main(churn.Args(**args, out=str(tmp_path / "out")))
    assert not list(tmp_path.glob("out*"))
