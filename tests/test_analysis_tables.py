"""benchmark/analysis_tables.py: the lines of each table, those on the pages, folders, refusals."""

import csv
from pathlib import Path
from statistics import median

import pytest
import tyro
from runs import called

import filter_comparison
import gap_and_bias
import recall_density
from benchmark import analysis_tables
from popgym_arcade.analysis.intervals import interval
from popgym_arcade.analysis.tables import read_csv
from popgym_arcade.baselines.errors import UserError

ROOT = Path(__file__).parent.parent
AGENT = {"script": "pqn_rnn", "memory": "GRU", "trained_env_id": "SkittlesEasy", "trained_partial_obs": "True"}
KINDS = ("grid", "line")
TABLES = sorted(
    path
    for path in (ROOT / "docs/figures").glob("*/*.csv")
    if path.with_suffix(".md").exists()
    and path.stem not in ("churn", "throughput", "levels", "published_package")  # scripts in benchmark/ make these
)


def write(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def lines_of(path: Path) -> list[dict]:
    text = analysis_tables.table(path).replace("\N{NO-BREAK SPACE}", " ")
    head, _, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return [dict(zip(head, line, strict=True)) for line in lines]


def evaluation(seed: int, twin: str, mean: float, **more) -> dict:
    about = {"run": "A", "global_step": 1000, "seed": seed, "twin": twin}
    return AGENT | about | {"return_mean": mean, "return_low": mean - 0.1, "return_high": mean + 0.2} | more


def test_matches_have_a_line_for_each_opponent(tmp_path):
    against = {
        name: f"m.pong.Easy__pomdp__ppo_selfplay__{name}__0__20261129-1200{n}" for n, name in enumerate(("MLP", "LRU"))
    }
    rows = [
        evaluation(seed, "pomdp", mean, against=against[name], won=6, drawn=1, lost=3)
        for name in against
        for seed, mean in enumerate((0.2, 0.4))
    ]
    first, second = lines_of(write(tmp_path / "evaluate.csv", rows))
    assert (first["against"], second["against"]) == ("LRU, partially observable", "MLP, partially observable")
    assert (first["won"], first["drawn"], first["lost"], first["seeds"]) == ("12", "2", "6", "2")
    assert first["return"].startswith("0.300 (") and first["each seed"] == "0.200, 0.400"


def test_an_opponent_in_another_folder_keeps_its_name(tmp_path):
    rows = [
        evaluation(0, "pomdp", 0.2, against=name, won=6, drawn=1, lost=3) for name in ("best", "A__mdp__x__y__M__0__1")
    ]
    assert {line["against"] for line in lines_of(write(tmp_path / "evaluate.csv", rows))} == {
        "best",
        "A__mdp__x__y__M__0__1",
    }


def test_another_id_and_another_policy_are_named(tmp_path):
    rows = [
        evaluation(0, "pomdp", mean, env_id=env_id, policy=policy)
        for mean, env_id, policy in ((0.1, "SkittlesEasy", "greedy"), (0.2, "SkittlesHard", "sample"))
    ]
    own, other = lines_of(write(tmp_path / "evaluate.csv", rows))
    assert (own["played on"], own["policy"], own["return, partially observable"][:5]) == ("", "", "0.100")
    assert (other["played on"], other["policy"], other["return, partially observable"][:5]) == (
        "SkittlesHard",
        "sample",
        "0.200",
    )
    rows = [evaluation(0, "pomdp", 0.1, env_id="SkittlesEasy", env_params="max_steps_in_episode=7")]
    assert lines_of(write(tmp_path / "evaluate.csv", rows))[0]["played on"] == "SkittlesEasy max_steps_in_episode=7"


def test_both_twins_are_side_by_side_and_seeds_are_put_together(tmp_path):
    means = (0.2, 0.4, 0.9)
    rows = [evaluation(seed, "pomdp", mean) for seed, mean in enumerate(means)]
    rows += [evaluation(seed, "mdp", mean / 2) for seed, mean in enumerate(means)]
    rows += [evaluation(0, "pomdp", 0.5, memory="LRU")]
    several, one = lines_of(write(tmp_path / "evaluate.csv", rows))
    low, high = interval(means)
    assert several["return, partially observable"] == f"0.500 ({low:.3f} to {high:.3f})"
    assert several["return, fully observable"].startswith("0.250 (")
    assert (several["seeds"], several["steps"]) == ("3", "1,000")
    assert several["each seed, on its own twin"] == "0.200, 0.400, 0.900"
    assert (one["memory"], one["return, partially observable"], one["return, fully observable"]) == (
        "LRU",
        "0.500 (0.400 to 0.700)",
        "",
    )
    rows += [evaluation(0, "single", 0.25, trained_env_id="CartPole-v1", trained_partial_obs="False")]
    without_twins = lines_of(write(tmp_path / "evaluate.csv", rows))[0]
    assert (without_twins["trained on"], without_twins["return"]) == ("", "0.250 (0.150 to 0.450)")
    with pytest.raises(UserError, match="the same seed of SkittlesEasy, pqn_rnn, GRU, partially observable, 1,000"):
        lines_of(write(tmp_path / "evaluate.csv", [*rows[:3], rows[0] | {"run": "B"}]))


def test_an_effect_that_never_halves_has_no_half_life(tmp_path):
    about = AGENT | {"twin": "pomdp", "kind": "noise"}
    rows = [
        about | {"strength": sigma, "measure": measure, "at_once": 0.25, "one_step_later": 0.125, "largest": 0.25}
        for sigma in ("0.1", "1.0")
        for measure in ("kl", "flips")
    ]
    for row, half in zip(rows, ("3", "3", "", ""), strict=True):
        row["half_life"] = half
    weak, strong = lines_of(write(tmp_path / "summary.csv", rows))
    assert (weak["change"], weak["half-life of KL"]) == ("noise, sigma 0.1", "3")
    assert (strong["change"], strong["half-life of KL"]) == ("noise, sigma 1", "not reached")
    assert (weak["KL, at once"], weak["greedy actions changed at once"], weak["one step later"]) == (
        "0.250",
        "25%",
        "12%",
    )


def test_without_discrete_actions_or_a_next_step_the_cells_are_empty(tmp_path):
    about = AGENT | {
        "twin": "pomdp",
        "kind": "noise",
        "strength": "1",
        "half_life": "1",
        "at_once": 0.25,
        "largest": 0.5,
    }
    rows = [about | {"measure": "kl", "one_step_later": ""}]
    (line,) = lines_of(write(tmp_path / "summary.csv", rows))
    assert line["KL, at once"] == "0.250" and "one step later" not in line and "KL, one step later" not in line


def test_two_groups_of_one_agent_are_not_merged(tmp_path):
    about = AGENT | {"twin": "pomdp", "group": "A", "agents": "3"}
    measures = ("mean_return", "kept", "looked_at")
    numbers = {f"{name}{bound}": 0.5 for name in measures for bound in ("", "_low", "_high")}
    rows = [about | {"frames": "1"} | numbers, about | {"group": "B", "frames": "1"} | numbers]
    with pytest.raises(
        UserError, match="frames 1 of SkittlesEasy, pqn_rnn, GRU, partially observable, 3 appears twice"
    ):
        lines_of(write(tmp_path / "last_frames.csv", rows))
    effect = {"kind": "noise", "strength": "1", "measure": "kl", "at_once": 0.25, "one_step_later": 0.1, "largest": 0.5}
    rows = [about | effect | {"half_life": "1"}, about | effect | {"group": "B", "half_life": "1"}]
    with pytest.raises(UserError, match="measure kl of SkittlesEasy, pqn_rnn, GRU, .*noise, sigma 1 appears twice"):
        lines_of(write(tmp_path / "summary.csv", rows))


def test_with_many_agents_only_the_strongest_change_is_shown(tmp_path):
    about = AGENT | {"twin": "pomdp", "at_once": 0.25, "one_step_later": 0.125, "largest": 0.25, "half_life": "1"}
    kinds = {"noise": (0.1, 1.0), "permutation": (20.0,)}
    for agents, expected in ((8, 24), (9, 18)):
        rows = [
            about | {"memory": f"M{i}", "kind": kind, "strength": strength, "measure": measure}
            for i in range(agents)
            for kind, strengths in kinds.items()
            for strength in strengths
            for measure in ("kl", "flips")
        ]
        lines = lines_of(write(tmp_path / "summary.csv", rows))
        assert len(lines) == expected
    assert {line["change"] for line in lines} == {"noise, sigma 1", "first 20 frames shuffled"}


def test_all_ids_together_have_a_line_if_there_are_several(tmp_path):
    about = {"algorithm": "pqn", "memory": "GRU", "quantity": "gap"}
    rows = [about | {"env_id": name, "value": 0.5, "low": "", "high": ""} for name in ("A", "all")]
    assert [line["id"] for line in lines_of(write(tmp_path / "gap_and_bias.csv", rows))] == ["A"]
    rows += [about | {"env_id": "B", "value": 0.5, "low": 0.25, "high": 0.75}]
    found = {line["id"]: line["gap"] for line in lines_of(write(tmp_path / "gap_and_bias.csv", rows))}
    assert found == {"A": "0.500", "B": "0.500 (0.250 to 0.750)", "all": "0.500"}


def test_a_memorys_seeds_and_their_shares_of_the_first_frame_are_listed(tmp_path):
    about = dict.fromkeys(recall_density.AGENT_COLUMNS, "1") | AGENT | {"twin": "pomdp", "env_id": "SkittlesEasy"}
    rows = [
        about | {"memory": memory, "seed": seed, "return_mean": seed, "first_frame": seed / 1000}
        for memory, seeds in (("LRU", (10, 9)), ("GRU", (0,)))
        for seed in seeds
    ]
    gru, lru = lines_of(write(tmp_path / "agents.csv", rows))
    assert (gru["memory"], gru["seeds"], gru["return of each"]) == ("GRU", "0", "0.00")
    assert (lru["seeds"], lru["return of each"]) == ("9, 10", "9.00, 10.00")
    assert lru["share of the first frame"] == "0.0090, 0.0100"
    with pytest.raises(
        UserError, match="the same seed of SkittlesEasy, pqn_rnn, GRU, partially observable appears twice"
    ):
        lines_of(write(tmp_path / "agents.csv", [*rows, rows[-1] | {"run": "B"}]))


def test_matchings_with_the_same_distances_share_a_line():
    about = {"group_a": "A", "group_b": "B", "pairs": "3", "low": 1, "high": 1, "relative": 0.5, "step": "last"}
    cases = [("first", "index", 1), ("first", "hungarian", 1), ("second", "index", 2), ("second", "hungarian", 1)]
    rows = [
        about | {"layer": layer, "matching": matching, "distance_mean": mean, "high": mean}
        for layer, matching, mean in cases
    ]
    found = [(line["layer"], line["matching"]) for line in analysis_tables.distances(rows)]
    assert found == [("first", "index or hungarian"), ("second", "index"), ("second", "hungarian")]


def test_a_twin_is_named_only_where_the_agent_was_not_trained_on_it(tmp_path):
    about = {"trained_env_id": "SkittlesEasy", "script": "pqn_rnn", "memory": "GRU", "trained_partial_obs": "True"}
    about |= {f"{mass}{what}": 0.5 for mass in recall_density.MASSES for what in ("", "_low", "_high")} | {
        "agents": "1"
    }
    rows = [about | {"twin": twin} for twin in ("pomdp", "mdp")]
    assert [line["played on"] for line in analysis_tables.density_of_thirds(rows)] == ["fully observable", ""]


@pytest.mark.parametrize("path", TABLES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_tables_of_the_pages_come_from_their_files(path):
    assert analysis_tables.table(path) == path.with_suffix(".md").read_text()


def test_every_table_is_on_a_page():
    """Or, of a long one, the numbers that a page takes from it and the link to all of them."""
    pages = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    names = [path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in TABLES]
    places = ("<!-- report: {}.md -->", "]({}.csv)")
    assert names and [name for name in names if not any(place.format(name) in pages for place in places)] == []


def spread(values: list[float], form: str = "{:.3f}") -> str:
    """The median, and the smallest and the largest value unless all are equal."""
    low, middle, high = (form.format(pick(values)) for pick in (min, median, max))
    return middle if min(values) == max(values) else f"{middle} ({low} to {high})"


@pytest.mark.parametrize("memory", ["MinGRU", "LRU"])
def test_the_page_of_the_analyses_has_the_medians_of_the_study(memory):
    page = (ROOT / "docs/study.md").read_text().replace("\N{NO-BREAK SPACE}", " ")
    noise, recall = (
        [row for row in read_csv(ROOT / f"docs/figures/memory_study/{name}.csv") if row["memory"] == memory]
        for name in ("contamination", "recall_density")
    )

    def effect(measure: str, column: str, form: str) -> str:
        strongest = (row for row in noise if (row["kind"], row["strength"]) == ("noise", "1.0"))
        return spread([float(row[column]) for row in strongest if row["measure"] == measure], form)

    def share(twin: str, *columns: str) -> str:
        return spread([sum(float(row[name]) for name in columns) for row in recall if row["twin"] == twin])

    cells = [effect("relative_values", column, "{:.3f}") for column in ("at_once", "one_step_later")]
    cells += [effect("relative_values", "half_life", "{:g}")]
    cells += [effect("flips", column, "{:.0%}") for column in ("at_once", "one_step_later")]
    assert f"| {memory} | {' | '.join(cells)} |\n" in page
    cells = [share(twin, *names) for names in (("last_frame",), ("first", "middle")) for twin in ("mdp", "pomdp")]
    assert f"| {memory} | {' | '.join(cells)} |\n" in page


def test_the_table_of_the_study_has_the_returns_gaps_and_biases_of_gap_and_bias():
    text = (ROOT / "docs/figures/memory_study_against.md").read_text().replace("MLP (no memory)", "MLP")
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
    found = {memory: (partial, full, gap, bias) for memory, full, bias, _, partial, _, _, gap in lines}
    text = (ROOT / "docs/figures/memory_study/gap_and_bias.md").read_text()
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| all |")]
    assert found == {memory: tuple(cell.strip() for cell in cells) for _, _, memory, *cells in rows}


def test_pages_get_a_folders_table_and_the_pictures_of_all_runs(tmp_path):
    place = tmp_path / "evaluate_seeds"
    write(place / "evaluate.csv", [evaluation(0, "pomdp", 0.5)])
    write(place / "episodes.csv", [{"run": "A", "episode": 0}])
    for name in ("evaluate_seeds.png", "noise.png", "A__pomdp__grid.png"):
        (place / name).write_bytes(name.encode())
    analysis_tables.main(analysis_tables.Args(folders=(str(place),), out=str(tmp_path / "pages")))
    found = {path.name for path in (tmp_path / "pages").iterdir()}
    assert found == {f"evaluate_seeds{end}" for end in (".csv", ".md", ".png", "_noise.png")}
    assert (tmp_path / "pages/evaluate_seeds.csv").read_bytes() == (place / "evaluate.csv").read_bytes()
    assert (tmp_path / "pages/evaluate_seeds.md").read_text() == analysis_tables.table(place / "evaluate.csv")


def test_pages_get_the_summary_of_filters(tmp_path):
    columns = {name: getattr(filter_comparison, f"{name.upper()}COLUMNS") for name in ("", "change_", "group_")}
    for name, head in zip(("distances", "changes", "summary"), columns.values(), strict=True):
        write(tmp_path / f"filters/{name}.csv", [dict.fromkeys(head, "1") | {"step": "last"}])
    for name in ("filters", "learned"):
        (tmp_path / f"filters/{name}.png").write_text(name)
    analysis_tables.main(analysis_tables.Args(folders=(str(tmp_path / "filters"),), out=str(tmp_path / "pages")))
    found = {path.name for path in (tmp_path / "pages").iterdir()}
    assert found == {"filters.csv", "filters.md", "filters.png", "filters_learned.png"}
    assert lines_of(tmp_path / "pages/filters.csv")[0]["pairs"] == "1"


def test_pages_get_the_return_on_each_id_and_the_saliency_of_each_run(tmp_path):
    gap = {"env_id": "A", "algorithm": "pqn", "memory": "GRU", "quantity": "gap", "value": 0.5, "low": "", "high": ""}
    write(tmp_path / "gap_and_bias/gap_and_bias.csv", [gap])
    write(tmp_path / "gap_and_bias/cells.csv", [dict.fromkeys(gap_and_bias.CELL_COLUMNS, "1")])
    write(tmp_path / "gap_and_bias/missing.csv", [{"cell": "B"}])
    write(
        tmp_path / "recall_density/recall_density.csv",
        [dict.fromkeys(recall_density.COLUMNS, "1") | AGENT | {"twin": "mdp"}],
    )
    write(
        tmp_path / "recall_density/agents.csv",
        [dict.fromkeys(recall_density.AGENT_COLUMNS, "1") | AGENT | {"twin": "mdp"}],
    )
    write(tmp_path / "recall_density/episodes.csv", [dict.fromkeys(recall_density.EPISODE_COLUMNS, "1")])
    (tmp_path / "saliency").mkdir()
    for name in ("A__pomdp__pqn_rnn__GRU__0__20261125-012605", "A__mdp__pqn_rnn__GRU__0__20261125-012605-2"):
        for kind in ("__grid.png", "__line.png", "__video.gif", ".html"):
            (tmp_path / "saliency" / f"{name}{kind}").write_text(name + kind)
    folders = tuple(str(tmp_path / name) for name in ("gap_and_bias", "recall_density", "saliency"))
    analysis_tables.main(analysis_tables.Args(folders=folders, out=str(tmp_path / "pages")))
    pictures = {f"saliency__A__{twin}__pqn_rnn__GRU__0__{kind}.png" for twin in ("mdp", "pomdp") for kind in KINDS}
    names = ("gap_and_bias", "recall_density", "recall_density_agents")
    tables = {f"{name}{end}" for name in names for end in (".csv", ".md")}
    tables |= {"gap_and_bias_cells.csv"}
    assert {path.name for path in (tmp_path / "pages").iterdir()} == pictures | tables
    assert (tmp_path / "pages/gap_and_bias_cells.csv").read_text().startswith(",".join(gap_and_bias.CELL_COLUMNS))
    found = (tmp_path / "pages/saliency__A__mdp__pqn_rnn__GRU__0__grid.png").read_text()
    assert found == "A__mdp__pqn_rnn__GRU__0__20261125-012605-2__grid.png"
    analysis_tables.main(analysis_tables.Args(folders=folders[2:], out=str(tmp_path / "alone")))
    assert {path.name for path in (tmp_path / "alone").iterdir()} == pictures
    (tmp_path / "saliency/A__mdp__pqn_rnn__GRU__0__20261125-012606__grid.png").touch()
    with pytest.raises(UserError, match="two runs are named A__mdp__pqn_rnn__GRU__0"):
        analysis_tables.main(analysis_tables.Args(folders=folders, out=str(tmp_path / "other")))
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "give --csv, or --folders and --out"),
        (["--csv", "other.csv"], "--csv other.csv: none of these is a table of an analysis script"),
        (["--csv", "none.csv"], "--csv none.csv: No such file"),
        (["--csv", "half.csv"], "--csv half.csv: a column is missing or malformed: KeyError"),
        (["--folders", "empty", "--out", "pages"], "--folders empty: it has no tables of an analysis script"),
    ],
)
def test_bad_input_is_refused_in_one_line_and_nothing_is_written(tmp_path, monkeypatch, flags, words):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "other.csv", [{"a": 1}])
    write(tmp_path / "half.csv", [{"last_frame_low": 1}])
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError) as error:
        analysis_tables.main(tyro.cli(analysis_tables.Args, args=flags))
    assert str(error.value).startswith(words) and "\n" not in str(error.value) and sorted(tmp_path.iterdir()) == before


def test_a_refusal_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = called(ROOT / "benchmark/analysis_tables.py", "--csv", "none.csv")
    told = "analysis_tables.py: error: --csv none.csv: No such file"
    assert done.returncode == 2 and done.stderr.startswith(told) and done.stderr.count("\n") == 1, done.stderr
    assert not list(tmp_path.iterdir())
