"""benchmark/*.sh: at every budget, every command has flags that its script accepts, and none is run twice."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
import tyro
from runs import missing_libraries, parsed
from scripts import ALL, script

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "benchmark"))
LISTS = sorted(path for path in (ROOT / "benchmark").glob("*.sh") if path.stem != "common")
HAVE_OWN_IDS = ("classic_control", "memory_chain", "memory_length", "ppo_continuous_action")
BUDGETS = ("smoke", "cpu", "gpu", "paper")
PLACE = r"/(\d+)/\*__\*"  # of a training command, in a pattern of its runs; a commit can be all digits too
# Takes the place of Python: notes its arguments, leaves a run folder with a checkpoint or the folder of an analysis,
# and saves itself when it is stopped. If told to, it takes its time (SLEEPS), or fails (FAILS: scripts, CODE, SAYS).
IN_PLACE_OF_PYTHON = """#!/bin/bash
echo "$*" >> "$CALLS"
ps -o pgid= $$ > "$CALLS.group"
trap 'echo saved >> "$CALLS"; kill $!; exit 143' TERM
run="" script="$1"
while [ $# -gt 0 ]; do
    if [ "$1" = --run-dir ]; then
        run="$2/run__0"
        mkdir -p "$run/checkpoints/10${SAVED:-}"
        [ -n "${SAVED:-}" ] || touch "$run/checkpoints/10/sha256.json"
    fi
    [ "$1" != --out ] || [[ $script == benchmark/* ]] || mkdir -p "$2"
    shift
done
if [ -n "${SLEEPS:-}" ] && [ -n "$run" ]; then sleep 60 > /dev/null 2>&1 & wait $!; fi
[[ -n "${FAILS:-}" && $script == ${FAILS}* ]] && echo "${SAYS:-}" && exit ${CODE:-1} || exit 0
"""


def environment(tmp_path: Path, settings: dict) -> dict[str, str]:
    """A Python that runs nothing; what it was called with is in `tmp_path`/calls."""
    python = tmp_path / "python"
    python.write_text(IN_PLACE_OF_PYTHON)
    python.chmod(0o755)
    places = {"PYTHON": python, "CALLS": tmp_path / "calls", "RUN_DIR": tmp_path / "runs", "OUT": tmp_path / "out"}
    return {name: str(value) for name, value in {**os.environ, **places, **settings}.items()}


def run(path: Path, tmp_path: Path, **settings) -> subprocess.CompletedProcess:
    """The list of commands with that Python, to its end."""
    env = environment(tmp_path, settings)
    return subprocess.run([path], env=env, capture_output=True, text=True, timeout=120)


def start(path: Path, tmp_path: Path, **settings) -> subprocess.Popen:
    """The list whose first run does not end by itself, once that is under way."""
    env = environment(tmp_path, settings | {"SLEEPS": "1"})
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    # what nohup and a shell's & make a process ignore, bash would not trap
    process = subprocess.Popen(["env", "--default-signal=HUP,INT", path], env=env, **how)
    while not calls(tmp_path):
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)  # its trap is set by now
    return process


def calls(tmp_path: Path) -> list[str]:
    path = tmp_path / "calls"
    return path.read_text().splitlines() if path.exists() else []


def budgets_of(path: Path) -> tuple[str, ...]:
    """The budgets that make a difference to a list."""
    ignored = re.search(r'^WITHOUT=".*\bBUDGET\b', path.read_text(), re.MULTILINE)
    return BUDGETS[:2] if ignored else BUDGETS


@pytest.mark.usefixtures("asked_here")
@pytest.mark.parametrize(
    ("path", "budget"),
    [(path, budget) for path in LISTS for budget in budgets_of(path)],
    ids=lambda value: getattr(value, "stem", value),
)
def test_every_command_has_flags_that_its_script_accepts(path, budget, tmp_path):
    own = budget == "smoke" or path.stem in HAVE_OWN_IDS or "impala" in path.stem  # sizes there depend on the ids
    ids = {} if own else {"ENVS": "BattleShipEasy"}
    done = run(path, tmp_path, DRY_RUN="1", BUDGET=budget, **ids)
    assert done.returncode == 0, done.stderr
    found = [shlex.split(line)[1:] for line in done.stdout.splitlines()]
    assert found and not calls(tmp_path)
    trainings = [tuple(line) for line in found if Path(line[0]).stem in ALL]
    assert len(set(trainings)) == len(trainings) / (3 if path.stem == "classic_control_speed" else 1)  # in three rounds
    seen = set()
    for name, *flags in found:
        stem = Path(name).stem
        given = re.split(r" (?=--)", " ".join(flags))
        new = {(stem, flag) for flag in given if flag.split()[0] not in ("--seed", "--run-dir")} - seen
        if not new:  # each flag was there with this value
            continue
        seen |= new
        unpacked_later = Path(name).parent.name.startswith("scripts_")  # of the commit that it compares with
        assert (ROOT / (Path(name).name if unpacked_later else name)).is_file()
        if stem == "tune":  # what comes after -- are the runs' flags
            parsed(*flags[flags.index("--") + 1 :], script=script(flags[flags.index("--script") + 1]))
            flags = flags[: flags.index("--")]
        if missing_libraries(flags):
            continue
        if stem in ALL:
            parsed(*flags, script=script(stem))
        else:
            args = tyro.cli(import_module(stem).Args, args=flags)
            getattr(args, "checked", lambda: None)()
            assert Path(getattr(args, "out", tmp_path)).is_relative_to(tmp_path)  # OUT and RUN_DIR are there


@pytest.mark.parametrize("path", sorted((ROOT / "benchmark").glob("*.py")), ids=lambda path: path.stem)
def test_no_tool_overwrites_what_is_in_the_repository_unless_asked(path):
    out = re.search(r'^    out: .* = "(.*)"$', path.read_text(), re.MULTILINE)
    if out and path.stem != "ship_agent":  # which refuses an agent that exists
        assert not out[1] or out[1].startswith("runs/")


def test_a_variant_is_refused_unless_every_expression_changes_the_script(tmp_path):
    line = "source benchmark/common.sh; flags=; variant pqn_mlp.py small 's/Count = 32/Count = 16/' 's/no such line/x/'"
    env = environment(tmp_path, {"DRY_RUN": "1"})
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr == "pqn_mlp.py: this expression changes nothing: s/no such line/x/\n"
    assert not done.stdout and not (tmp_path / "runs").exists()


def test_a_variant_counts_as_different_code_once_the_package_has_changed(tmp_path):
    line = "source benchmark/common.sh; flags=; variant pqn_mlp.py small 's/Count = 32/Count = 16/'"
    (tmp_path / "benchmark").mkdir(), (tmp_path / "popgym_arcade").mkdir()
    for name in ("pqn_mlp.py", "benchmark/common.sh", "popgym_arcade/registration.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    settings = {"cwd": tmp_path, "env": environment(tmp_path, {}), "capture_output": True, "text": True, "timeout": 60}
    again = [subprocess.run(["bash", "-c", line], **settings) for _ in range(2)][1]
    assert again.returncode == 0 and not again.stderr and again.stdout.startswith("complete: ")
    with (tmp_path / "popgym_arcade/registration.py").open("a") as file:
        file.write("# changed\n")
    assert subprocess.run(["bash", "-c", line], **settings).stderr.startswith("trained with different code")


def test_a_complete_training_is_not_run_again(tmp_path):
    path = ROOT / "benchmark/pqn_mlp.sh"
    settings = {"ENVS": "CartPoleEasy", "TWINS": "mdp"}
    assert run(path, tmp_path, **settings).returncode == 0
    first = calls(tmp_path)
    assert [call.split()[0] for call in first] == ["pqn_mlp.py", "benchmark/report.py"]
    again = run(path, tmp_path, **settings)
    assert "complete: pqn_mlp.py --env-id CartPoleEasy" in again.stdout
    assert [call.split()[0] for call in calls(tmp_path)[2:]] == ["benchmark/report.py"]
    assert "different code" not in again.stderr
    assert re.search(r"^took 0:00:\d\d, with earlier calls 0:00:\d\d$", again.stdout, re.MULTILINE)
    (complete,) = tmp_path.glob("runs/*/complete")
    complete.write_text("1 2\n")
    said = run(path, tmp_path, **settings).stderr
    assert said == f"trained with different code; remove {complete.parent} to train it again\n"
    run(path, tmp_path, **settings, SEEDS="0 1")  # another command, and a report of its run alone
    assert "--num-seeds 2" in calls(tmp_path)[4]
    reports = [call.split("--runs ")[1].split(" --out")[0] for call in calls(tmp_path) if "report.py" in call]
    assert reports[0] == reports[1] == reports[2] != reports[3] and all(len(each.split()) == 1 for each in reports)


def test_a_list_adds_up_the_time_of_all_its_calls(tmp_path):
    (tmp_path / "runs").mkdir()
    seconds = tmp_path / "runs/seconds"
    seconds.write_text("36061\n")
    done = run(ROOT / "benchmark/pqn_mlp.sh", tmp_path, ENVS="CartPoleEasy", TWINS="mdp")
    assert int(seconds.read_text()) >= 36061
    assert "with earlier calls 10:01:" in done.stdout
    run(ROOT / "benchmark/pqn_mlp.sh", tmp_path, ENVS="CartPoleEasy", TWINS="mdp", DRY_RUN="1")
    assert int(seconds.read_text()) < 36061 + 120


def test_lists_that_end_at_the_same_time_add_up_their_times(tmp_path):
    (tmp_path / "runs").mkdir()
    line = ["bash", "-c", "source benchmark/common.sh && SECONDS=100", "benchmark/pqn_mlp.sh"]
    env = environment(tmp_path, {})
    lists = [subprocess.Popen(line, cwd=ROOT, env=env, stdout=subprocess.DEVNULL) for _ in range(20)]
    assert [each.wait(timeout=60) for each in lists] == [0] * 20
    assert int((tmp_path / "runs/seconds").read_text()) >= 2000


def test_code_that_a_training_uses_and_that_changed_since_is_reported(tmp_path):
    """The script's, the environments' and the baselines', but not the analysis'."""
    copy, settings = tmp_path / "copy", {"ENVS": "CartPoleEasy", "TWINS": "mdp"}
    shutil.copytree(ROOT / "popgym_arcade", copy / "popgym_arcade", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "benchmark").mkdir()
    for name in ("pqn_mlp.py", "benchmark/common.sh", "benchmark/pqn_mlp.sh"):
        shutil.copy(ROOT / name, copy / name)
    path, package = copy / "benchmark/pqn_mlp.sh", copy / "popgym_arcade"
    assert run(path, tmp_path, **settings).returncode == 0
    for changed, reported in {
        **{package / "analysis/agents.py": False, copy / "pqn_mlp.py": True, package / "registration.py": True},
        **{package / "environments/screen.py": True, package / "baselines/arguments.py": True},
        package / "baselines/networks/memory.py": True,
    }.items():
        before = changed.read_text()
        changed.write_text(before + "# changed\n")
        assert run(path, tmp_path, **settings).stderr.count("trained with different code") == reported, changed
        changed.write_text(before)
        assert run(path, tmp_path, **settings).stderr == ""


def test_an_interrupted_training_is_resumed_and_a_failed_one_is_reported(tmp_path):
    path = ROOT / "benchmark/pqn_mlp.sh"
    settings = {"ENVS": "CartPoleEasy BreakoutEasy", "TWINS": "pomdp"}
    done = run(path, tmp_path, **settings, FAILS="pqn")
    assert done.returncode == 1 and done.stderr.count("failed: exit 1: pqn_mlp.py") == 2
    assert run(path, tmp_path, **settings).returncode == 0
    resumed = [call for call in calls(tmp_path) if "--resume" in call]
    assert len(resumed) == 2 and all((Path(call.split()[2]) / "checkpoints/10").is_dir() for call in resumed)


def test_a_run_without_a_checkpoint_is_started_again_and_its_folder_is_kept(tmp_path):
    path = ROOT / "benchmark/pqn_mlp.sh"
    settings = {"ENVS": "CartPoleEasy", "TWINS": "mdp"}
    for _ in range(2):  # a checkpoint that was being written is none
        run(path, tmp_path, **settings, FAILS="pqn", SAVED=".orbax-checkpoint-tmp")
    assert run(path, tmp_path, **settings).returncode == 0
    assert not [call for call in calls(tmp_path) if "--resume" in call]
    assert len(list((tmp_path / "runs.unfinished").glob("*/run__0"))) == 2


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGHUP, 129), (signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_list_and_the_training_which_saves_itself(sent, code, tmp_path):
    settings = {"ENVS": "CartPoleEasy BreakoutEasy", "TWINS": "mdp"}
    process = start(ROOT / "benchmark/pqn_mlp.sh", tmp_path, **settings)
    assert int((tmp_path / "calls.group").read_text()) != process.pid  # a terminal's Ctrl-C is to the list's group
    os.killpg(process.pid, sent)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code and said == "stopped; run the same command to resume\n"
    assert len(calls(tmp_path)) == 2 and calls(tmp_path)[1] == "saved"
    done = run(ROOT / "benchmark/pqn_mlp.sh", tmp_path, **settings)
    assert done.returncode == 0 and "--resume" in calls(tmp_path)[2]


def test_two_lists_do_not_train_the_same_at_the_same_time(tmp_path):
    settings = {"ENVS": "CartPoleEasy", "TWINS": "mdp"}
    first = start(ROOT / "benchmark/pqn_mlp.sh", tmp_path, **settings)
    second = run(ROOT / "benchmark/pqn_mlp.sh", tmp_path, **settings)
    assert second.returncode == 1
    assert "failed: another list is training it: pqn_mlp.py --env-id CartPoleEasy" in second.stderr
    assert len([call for call in calls(tmp_path) if call.startswith("pqn_mlp.py")]) == 1
    assert not (tmp_path / "runs.unfinished").exists()
    first.terminate()
    first.communicate(timeout=60)


def test_an_analysis_is_made_again_when_it_failed_or_a_training_is_newer(tmp_path):
    path, settings = ROOT / "benchmark/memory_study.sh", {"ENVS": "CartPoleEasy", "BUDGET": "smoke", "MEMORIES": "GRU"}

    def analyses():
        found = [call.split()[0] for call in calls(tmp_path) if call.startswith("contamination.py")]
        (tmp_path / "calls").unlink()
        return len(found)

    done = run(path, tmp_path, **settings, FAILS="contamination")
    assert done.returncode == 1 and analyses() == 1 and not (tmp_path / "out/contamination").exists()
    assert run(path, tmp_path, **settings).returncode == 0 and analyses() == 1
    (tmp_path / "out/contamination/picture.png").touch()
    assert run(path, tmp_path, **settings).returncode == 0 and analyses() == 0
    assert run(path, tmp_path, **settings | {"MEMORIES": "GRU LRU"}).returncode == 0
    assert run(path, tmp_path, **settings).returncode == 0 and analyses() == 2  # first of more runs, then of fewer
    assert len(list(tmp_path.glob("out/contamination.2*/picture.png"))) == 1
    assert len(list(tmp_path.glob("out/contamination.2*/command"))) == 2  # each beside the others, also of one second
    time.sleep(1.1)  # folders' times are compared by the second on some disks
    assert run(path, tmp_path, **settings, TWINS="mdp", SEEDS="1 2").returncode == 0 and analyses() == 1
    assert not list(tmp_path.glob("out/*.partial"))


def test_an_analysis_made_with_different_code_is_kept_and_said(tmp_path):
    path, settings = ROOT / "benchmark/memory_study.sh", {"ENVS": "CartPoleEasy", "BUDGET": "smoke", "MEMORIES": "GRU"}
    assert run(path, tmp_path, **settings).returncode == 0
    done = run(path, tmp_path, **settings)
    assert "up to date" in done.stdout and "different code" not in done.stderr
    (tmp_path / "out/contamination/code").write_text("1 2\n")
    done = run(path, tmp_path, **settings)
    folder = tmp_path / "out/contamination"
    assert done.stderr.splitlines() == [f"made with different code; remove {folder} to make it again"]


def test_ppo_is_compared_with_the_pqn_of_an_earlier_call_and_parts_have_one_order(tmp_path):
    path, settings = ROOT / "benchmark/memory_study.sh", {"ENVS": "CartPoleEasy", "BUDGET": "smoke", "MEMORIES": "GRU"}

    def compared():
        (report,) = [call for call in calls(tmp_path) if "memory_study_ppo" in call]
        (tmp_path / "calls").unlink()
        return sorted(re.findall(PLACE, report))

    assert run(path, tmp_path, **settings, PARTS="ppo").returncode == 0
    alone = compared()
    assert run(path, tmp_path, **settings, PARTS="ppo pqn").returncode == 0
    both = compared()
    assert len(alone) == 2 and len(both) == 4 and {*alone} < {*both}
    assert run(path, tmp_path, **settings, PARTS="ppo").returncode == 0 and compared() == both
    assert run(path, tmp_path, **settings, PARTS="ppo pqm").returncode == 2


def test_worse_trainings_are_repeated_with_other_seeds(tmp_path):
    path, settings = ROOT / "benchmark/regression.sh", {"BUDGET": "smoke", "SEEDS": "0 1"}
    assert run(path, tmp_path, **settings).returncode == 0
    first = calls(tmp_path)
    trainings = [call for call in first if "regression.py" not in call]
    assert len(trainings) == 18 and all("--seed 0 --num-seeds 2" in call for call in trainings)
    scripts = {Path(call.split()[0]) for call in trainings}
    assert len(scripts) == 16 and all((script.parent / "popgym_arcade/registration.py").is_file() for script in scripts)
    (tmp_path / "calls").unlink()
    assert run(path, tmp_path, **settings, FAILS="benchmark/regression.py", CODE="3").returncode == 1
    comparison, *again, both = calls(tmp_path)
    assert comparison == first[-1] and len(again) == 18 and all("--seed 2 --num-seeds 2" in call for call in again)
    runs = [re.findall(PLACE, part) for part in re.split(r"--again-before|--again-after", both)]
    assert both.startswith(comparison) and [len(each) for each in runs] == [18, 9, 9]
    assert not set(runs[0]) & {*runs[1], *runs[2]}


def test_only_scripts_in_question_are_trained_again(tmp_path):
    worse = "worse or missing: impala_popart MinGRU A mdp, impala_popart MinGRU B mdp, pqn_rnn MinGRU C pomdp"
    settings = {"BUDGET": "smoke", "SEEDS": "0 1", "FAILS": "benchmark/regression.py", "CODE": "3", "SAYS": worse}
    done = run(ROOT / "benchmark/regression.sh", tmp_path, **settings)
    assert done.returncode == 1 and worse in done.stdout
    again = [Path(call.split()[0]).stem for call in calls(tmp_path) if "--seed 2 --num-seeds 2" in call]
    assert again == 2 * ["pqn_rnn", "impala_popart", "pqn_rnn"]
    runs = re.findall(PLACE, re.split("--again-before", calls(tmp_path)[-1])[1])
    assert len(runs) == len(again)


@pytest.mark.parametrize(
    "more",
    [{"FAILS": "benchmark/regression.py", "CODE": "2"}, {"FAILS": "*regression.py", "CODE": "1"}]
    + [{"FAILS": "*@(pqn_rnn|regression).py", "CODE": "3"}],
)
def test_trainings_that_could_not_be_compared_are_not_repeated(more, tmp_path):
    settings = {"BUDGET": "smoke", "SEEDS": "0 1"}
    assert run(ROOT / "benchmark/regression.sh", tmp_path, **settings, **more).returncode == 1
    assert not [call for call in calls(tmp_path) if "--seed 2" in call]


def test_one_seed_is_refused_before_it_is_trained(tmp_path):
    done = run(ROOT / "benchmark/regression.sh", tmp_path, SEEDS="0")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and not calls(tmp_path)
    assert not (tmp_path / "runs").exists()


def test_a_list_names_settings_that_it_ignores(tmp_path):
    done = run(ROOT / "benchmark/encoders.sh", tmp_path, DRY_RUN="1", BUDGET="gpu", ENVS="TetrisEasy", STEPS="10")
    assert done.returncode == 0 and done.stderr.splitlines() == [
        "encoders.sh: ignoring ENVS=TetrisEasy, this list sets its own",
        "encoders.sh: ignoring BUDGET=gpu, this list sets its own",
        "encoders.sh: ignoring STEPS=10, this list sets its own",
    ]


def test_an_ignored_budget_changes_no_command(tmp_path):
    ignoring = [path for path in LISTS if budgets_of(path) == BUDGETS[:2]]
    assert ROOT / "benchmark/ten_games.sh" in ignoring
    for path in ignoring:
        cpu, gpu = (run(path, tmp_path, DRY_RUN="1", BUDGET=budget) for budget in ("cpu", "gpu"))
        assert gpu.returncode == 0 and gpu.stdout == cpu.stdout, path


@pytest.mark.parametrize("name", ["pqn_mlp", "dqn_rnn", "ten_games"])
def test_steps_sets_the_length_and_the_evaluations_of_each_training(name, tmp_path):
    done = run(ROOT / f"benchmark/{name}.sh", tmp_path, DRY_RUN="1", ENVS="SkittlesEasy AutoEncodeEasy", STEPS="204800")
    steps = {"SkittlesEasy": set(), "AutoEncodeEasy": set()}
    for line in done.stdout.splitlines()[:-1]:  # the last is the report
        path, *flags = shlex.split(line)[1:]
        args = parsed(*flags, script=script(Path(path).stem))
        assert args.eval_every == 20480
        steps[args.env_id].add(args.total_timesteps)
    longer = 1 if name == "dqn_rnn" else 2
    assert steps == {"SkittlesEasy": {204800}, "AutoEncodeEasy": {longer * 204800}}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"BUDGET": "large"}, "BUDGET=large: use smoke, cpu, gpu or paper"),
        ({"SEEDS": "0 2"}, 'SEEDS=0 2: use consecutive numbers, such as "0 1 2"'),
        ({"SEEDS": "a"}, "SEEDS=a: use"),
        ({"TWINS": "both"}, 'TWINS=both: use pomdp, mdp or "pomdp mdp"'),
        ({"STEPS": "1e6"}, "STEPS=1e6: use a whole number, 10 or more"),
        ({"SETTINGS": "mine"}, "SETTINGS=mine: use stated or code"),
        ({"ENVS": "CartPoleEasy Pong"}, "ENVS=CartPoleEasy Pong: Pong is not an id of popgym_arcade"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(settings, words, tmp_path):
    done = run(ROOT / "benchmark/pqn_mlp.sh", tmp_path, **settings)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stderr.startswith(words)
    assert not calls(tmp_path) and not (tmp_path / "runs").exists()


def test_the_paper_and_its_code_differ_in_learning_rate_and_epsilon(tmp_path):
    lines = {}
    for settings in ("stated", "code"):
        path = ROOT / "benchmark/pqn_rnn.sh"
        done = run(path, tmp_path, DRY_RUN="1", BUDGET="paper", SETTINGS=settings, ENVS="BattleShipEasy", TWINS="mdp")
        flags = shlex.split(done.stdout.splitlines()[0])[2:]
        lines[settings] = parsed(*flags, script=script("pqn_rnn"))
    stated, code = lines["stated"], lines["code"]
    assert stated.total_timesteps == code.total_timesteps > 20_000_000 - 1
    assert (stated.exploration_fraction, code.exploration_fraction) == (0.25, 0.4)
    last = stated.num_updates * stated.update_epochs * stated.num_minibatches
    rate = script("pqn_rnn").learning_rate_at
    assert [float(rate(code, step)) for step in (0, last // 10, last)] == pytest.approx([5e-5, 5e-7, 5e-7], rel=1e-3)
    assert [float(rate(stated, step)) for step in (0, last // 2)] == pytest.approx([5e-5, 2.5e-5], rel=1e-3)


@pytest.mark.slow
def test_a_list_trains_and_reports_for_real(tmp_path):
    settings = {"BUDGET": "smoke", "ENVS": "CartPoleEasy", "TWINS": "pomdp", "SEEDS": "0 1", "PYTHON": sys.executable}
    env = os.environ | settings | {"RUN_DIR": str(tmp_path / "runs"), "OUT": str(tmp_path / "out")}
    done = subprocess.run([ROOT / "benchmark/pqn_mlp.sh"], env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    told = (tmp_path / "out/pqn_mlp.md").read_text()
    assert told in done.stdout and told.splitlines()[2].startswith("| pqn_mlp | 2 | 32 |")
    assert (tmp_path / "out/pqn_mlp.png").stat().st_size > 5000
    (place,) = (place for place in (tmp_path / "runs").iterdir() if place.is_dir())
    assert (place / "complete").read_text() and "pqn_mlp.py --env-id CartPoleEasy" in (place / "command").read_text()
