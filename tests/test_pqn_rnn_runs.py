"""pqn_rnn.py: run folders, checkpoints, resume, signals, and what is refused."""

import csv
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from small import ARCADE, assert_equal, small, trained
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import pqn_rnn
from pqn_rnn import Args, UserError

ROOT = Path(__file__).parent.parent


# ---------------------------------------------------------------------------------------------------- runs, checkpoints


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """The folder of a complete small run."""
    return pqn_rnn.main(small(run_dir=str(tmp_path_factory.mktemp("runs"))))


def checkpoint_arrays(folder: Path, args: Args) -> dict:
    step, state = pqn_rnn.restore_checkpoint(folder, args)
    assert step == args.total_timesteps
    return pqn_rnn.named_arrays(state)


def scalars(folder: Path) -> dict[str, list]:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}


def command(*flags, **kwargs):
    line = [sys.executable, str(ROOT / "pqn_rnn.py"), *map(str, flags)]
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kwargs)


def flags_of(args: Args) -> list[str]:
    changed = {f.name: getattr(args, f.name) for f in dataclasses.fields(args) if getattr(args, f.name) != f.default}
    return [word for name, value in changed.items() for word in (pqn_rnn.flag(name), str(value))]


def test_run_folder_holds_what_it_promises(run):
    assert re.fullmatch(r"CartPole-v1__full__pqn_rnn__MinGRU__0__\d{8}-\d{6}(-\d+)?", run.name)
    about = json.loads((run / "args.json").read_text())
    assert about["script"] == "pqn_rnn" and about["args"]["hidden_size"] == 16
    assert about["versions"]["jax"] == jax.__version__ and about["device"]
    assert (run / "curve.png").stat().st_size > 1000
    assert sorted(int(path.name) for path in (run / "checkpoints").iterdir()) == [128, 192, 256]
    with (run / "eval.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == pqn_rnn.EVAL_COLUMNS
    assert [(int(row["global_step"]), row["policy"]) for row in rows] == [
        (0, "random"),
        (128, "greedy"),
        (256, "greedy"),
    ]
    assert {row["episodes"] for row in rows} == {"3"}


def test_tensorboard_holds_the_promised_curves(run):
    curves = scalars(run)
    names = "episodic_return episodic_length episodes SPS learning_rate epsilon compile_seconds"
    wanted = {f"charts/{name}" for name in names.split()} | {"eval/episodic_return"}
    wanted |= {f"losses/{name}" for name in ("td_loss", "q_values", "grad_norm")}
    assert set(curves) == wanted
    assert [point.step for point in curves["losses/td_loss"]] == [64, 128, 192, 256]
    assert [point.step for point in curves["eval/episodic_return"]] == [128, 256]


def test_a_loaded_run_gives_the_reported_return(run):
    args, params = pqn_rnn.load_run(run)
    key = jax.random.fold_in(pqn_rnn.make_keys(args)[1], args.total_timesteps)
    evaluation = jax.jit(pqn_rnn.make_evaluate(args))(params, key, 0.0)
    with (run / "eval.csv").open() as file:
        reported = list(csv.DictReader(file))[-1]
    assert float(reported["return_mean"]) == np.asarray(evaluation.returns, float).mean()
    assert float(reported["length_mean"]) == np.asarray(evaluation.lengths, float).mean()


def test_evaluation_counts_first_episodes_only():
    args = small(env_id="CartPole-v1", env_params=("max_steps_in_episode=5",), eval_episodes=6)
    env, params = pqn_rnn.make_env(args)
    network = pqn_rnn.make_network(args, env.observation_space(params), 2)
    space = env.observation_space(params)
    weights = jax.jit(lambda key: pqn_rnn.init_params(network, space, key))(jax.random.key(0))
    evaluation = pqn_rnn.make_evaluate(args)(weights, jax.random.key(1), 1.0)
    np.testing.assert_array_equal(evaluation.returns, np.full(6, 5.0))
    np.testing.assert_array_equal(evaluation.lengths, np.full(6, 5))


def test_several_seeds_share_a_folder(tmp_path):
    args = small(num_seeds=2, seed=5, run_dir=str(tmp_path))
    folder = pqn_rnn.main(args)
    assert "__5__" in folder.name
    with (folder / "eval.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["seed"] for row in rows] == ["5", "6"] * 3
    _, params = pqn_rnn.load_run(folder)
    assert {leaf.shape[0] for leaf in jax.tree.leaves(params)} == {2}
    curves = [scalars(folder / name)["losses/td_loss"] for name in ("", "seed_5", "seed_6")]
    for mean, one, other in zip(*curves, strict=True):
        assert mean.value == pytest.approx((one.value + other.value) / 2, rel=1e-5)


def test_total_timesteps_are_rounded_up_to_whole_updates():
    assert small(total_timesteps=33).total_timesteps == 64


def test_nothing_is_overwritten_by_a_run_of_the_same_second(tmp_path, monkeypatch):
    monkeypatch.setattr(pqn_rnn.time, "strftime", lambda _: "20260101-000000")
    args = small(run_dir=str(tmp_path))
    assert pqn_rnn.make_run_folder(args) != pqn_rnn.make_run_folder(args)


@pytest.mark.slow
def test_killed_and_resumed_equals_unbroken(run, tmp_path):
    """kill -9 at a random moment, twice; parameters, optimiser, environments and curves end as if nothing happened."""
    args = small(run_dir=str(tmp_path))
    chance = np.random.default_rng(time.time_ns())
    process = command(*flags_of(args))
    folder = None
    for _ in range(2):
        deadline = time.time() + 300
        while time.time() < deadline and process.poll() is None:
            folder = next(tmp_path.iterdir(), None)
            if folder and next(folder.glob("checkpoints/*/sha256.json"), None):
                break
            time.sleep(0.02)
        time.sleep(chance.uniform(0, 1.0))
        process.kill()
        process.communicate()
        process = command("--resume", folder)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    whole, broken = checkpoint_arrays(run, args), checkpoint_arrays(folder, args)
    assert whole.keys() == broken.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(array, broken[name], err_msg=name)
    rows = [[line.split(",")[:-1] for line in (f / "eval.csv").read_text().splitlines()] for f in (run, folder)]
    assert rows[0] == rows[1]  # but for the seconds
    for tag in ("losses/td_loss", "eval/episodic_return", "charts/epsilon"):
        points = [[(point.step, point.value) for point in scalars(f)[tag]] for f in (run, folder)]
        assert points[0] == points[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_a_checkpoint_and_says_where(tmp_path, number):
    args = small(run_dir=str(tmp_path), total_timesteps=10_000_000, checkpoint_every=0, eval_every=0)
    process = command(*flags_of(args))
    for line in process.stdout:
        if "SPS" in line:
            break
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number, err
    folder = next(tmp_path.iterdir())
    saved = [int(path.name) for path in (folder / "checkpoints").iterdir()]
    assert len(saved) == 1 and saved[0] > 0
    assert f"stopped at step {saved[0]}" in out and f"pqn_rnn.py --resume {folder}" in out and "Traceback" not in err


def test_a_second_signal_ends_the_process_also_while_it_compiles(tmp_path):
    process = command(*flags_of(small(run_dir=str(tmp_path))))
    assert "compiling" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert "once more" in process.stderr.readline() + process.stderr.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130 and not out and "Traceback" not in err
    folder = next(tmp_path.iterdir())
    assert (folder / "args.json").exists() and not (folder / "checkpoints").exists()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["compiling", "between two log points", "evaluating"])
def test_stopped_by_ctrl_c_and_resumed_equals_unbroken(tmp_path, monkeypatch, when):
    """With an early stop, which must come at the same step: what is due after the stop does not move."""
    args = small(log_every=128, eval_every=128, checkpoint_every=0, target_return=-1.0, run_dir=str(tmp_path / "whole"))
    whole = pqn_rnn.main(args)
    run_updates = pqn_rnn.run_updates

    def one_update(train_chunk, state, _updates, stop, pace):
        os.kill(os.getpid(), signal.SIGINT)
        return run_updates(train_chunk, state, 1, stop, pace)

    def interrupted(function):
        def inner(*args):
            os.kill(os.getpid(), signal.SIGINT)
            return function(*args)

        return inner

    with monkeypatch.context() as patch:
        if when == "compiling":
            patch.setattr(pqn_rnn, "compile_programs", interrupted(pqn_rnn.compile_programs))
        elif when == "evaluating":
            patch.setattr(pqn_rnn.Records, "evaluation", interrupted(pqn_rnn.Records.evaluation))
        else:
            patch.setattr(pqn_rnn, "run_updates", one_update)
        with pytest.raises(SystemExit) as stopped:
            pqn_rnn.main(dataclasses.replace(args, run_dir=str(tmp_path / "broken")))
    assert stopped.value.code == 130
    broken = next((tmp_path / "broken").iterdir())
    (step,) = (int(path.name) for path in (broken / "checkpoints").iterdir())
    assert step == (32 if when == "between two log points" else 0)
    pqn_rnn.main(pqn_rnn.parse_args(["--resume", str(broken)]))
    rows = [[line.split(",")[:-1] for line in (f / "eval.csv").read_text().splitlines()] for f in (whole, broken)]
    assert rows[0] == rows[1]  # but for the seconds
    states = [pqn_rnn.restore_checkpoint(folder, args) for folder in (whole, broken)]
    assert states[0][0] == states[1][0] == 256
    assert_equal(states[0][1], states[1][1])


def test_output_that_is_not_a_terminal_has_plain_lines(tmp_path):
    args = small(run_dir=str(tmp_path))
    out, err = command(*flags_of(args)).communicate(timeout=300)
    assert "\r" not in out + err and "%|" not in out + err
    lines = [line for line in out.splitlines() if re.match(r"step \d+ +SPS \d+ +return \S+ +left \d+ s", line)]
    assert len(lines) == 4
    for word in ("run folder", "greedy return", "random policy", "tensorboard"):
        assert word in out


def damage(path: Path, how: str):
    content = bytearray(path.read_bytes())
    if how == "truncated":
        content = content[: len(content) // 2]
    else:
        content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("how", ["truncated", "altered", "incomplete"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path, capsys, how):
    args = small(run_dir=str(tmp_path))
    init, _ = pqn_rnn.make_train(args)
    state = jax.jit(init)(jax.random.key(0))
    folder = pqn_rnn.make_run_folder(args)
    for step in (32, 64):
        pqn_rnn.save_checkpoint(folder, step, state.replace(update=jnp.int32(step)))
    last = folder / "checkpoints" / "64"
    if how == "incomplete":
        (last / "sha256.json").unlink()
    else:
        damage(max((path for path in last.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size), how)
    step, restored = pqn_rnn.restore_checkpoint(folder, args)
    assert step == 32 and int(restored.update) == 32
    assert "64 is incomplete or damaged" in capsys.readouterr().err
    # going on does not lose the damaged one, and does not trip over it
    records, step, _ = pqn_rnn.begin_run(dataclasses.replace(args, resume=str(folder)), None)
    names = sorted(path.name.split("-")[0] for path in (folder / "checkpoints").iterdir())
    assert step == 32 and names == ["32", "damaged"]
    with pytest.raises(UserError, match="no sound checkpoint"):
        damage(next((folder / "checkpoints" / "32" / "default").rglob("_METADATA")), "altered")
        pqn_rnn.restore_checkpoint(folder, args)


@pytest.mark.slow
def test_every_leaf_survives_a_checkpoint(tmp_path):
    for memory in ("MLP", "LRU", "Attention"):  # empty, complex and integer carries
        args = small(run_dir=str(tmp_path), memory=memory)
        state, _ = trained(args, 2)
        folder = pqn_rnn.make_run_folder(args)
        pqn_rnn.save_checkpoint(folder, 64, state)
        _, restored = pqn_rnn.restore_checkpoint(folder, args)
        assert jax.tree.structure(state) == jax.tree.structure(restored)
        assert [leaf.dtype for leaf in jax.tree.leaves(state)] == [leaf.dtype for leaf in jax.tree.leaves(restored)]
        assert_equal(state, restored)


def test_early_stop_after_two_good_evaluations(tmp_path):
    args = small(run_dir=str(tmp_path), total_timesteps=32 * 40, target_return=1.0, eval_every=64)
    folder = pqn_rnn.main(args)
    with (folder / "eval.csv").open() as file:
        steps = [int(row["global_step"]) for row in csv.DictReader(file) if row["policy"] == "greedy"]
    assert steps == [64, 128]


def test_capture_video(tmp_path):
    from PIL import Image

    args = dataclasses.replace(ARCADE, capture_video=True, total_timesteps=32, num_seeds=2, run_dir=str(tmp_path))
    args = args.checked()
    folder = pqn_rnn.main(args)
    with Image.open(folder / "episode.gif") as picture:
        assert picture.n_frames >= 8 and picture.size == (512, 256)


def test_the_video_ends_with_the_last_frame(tmp_path):
    from PIL import Image

    args = dataclasses.replace(ARCADE, env_params=("max_steps_in_episode=3",)).checked()
    params = pqn_rnn.make_train(args)[0](jax.random.key(0)).params
    pqn_rnn.record_episode(args, params, jax.random.key(1), tmp_path / "episode.gif")
    with Image.open(tmp_path / "episode.gif") as picture:
        assert picture.n_frames == 4  # of time 0, 1, 2, 3


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--env-id CartPoleEazy", "CartPoleEasy"),
        ("--env-id cartpole", "CartPole"),
        ("--env-id CartPole-v1 --partial-obs", "no partially observable twin"),
        ("--env-id Pendulum-v1", "Discrete"),
        ("--obs-size 100", "128 or 256"),
        ("--memory Elephant", "MinGRU"),
        ("--encoder resnet", "patch, paper"),
        ("--precision float8", "bfloat16"),
        ("--num-minibatches 5", "use 4 or 8"),
        ("--memory Spherical", "lower --hidden-size"),
        ("--env-params speed=3", "max_steps_in_episode"),
        ("--env-params max_steps_in_episode=many", "its int now"),
        ("--num-envs 0", "--num-envs 0: use 1 or more"),
        ("--seed 2147483647", "from 0 to 2147483646"),
        ("--learning-rate inf", "from 0 to 1"),
        ("--max-grad-norm 0", "--max-grad-norm"),
        ("--exp-name a/b", "without /"),
        ("--exp-name=", "without /"),
        ("--target-return nan", "finite"),
        ("--target-return 0.5 --eval-every 0", "--eval-every"),
        ("--env-params max_steps_in_episode=1e400", "its int now"),
        ("--env-params max_steps_in_episode=30.7", "its int now"),
        ("--env-params max_steps_in_episode=3000000000", "its int now"),
        ("--env-params max_steps_in_episode=[1,2]", "its int now"),
        ("--env-params max_steps_in_episode", "its int now"),
        ("--gamma 1.5", "from 0 to 1"),
        ("--learning-rate nan", "--learning-rate"),
        ("--env-id CartPole-v1 --capture-video", "popgym_arcade ids only"),
        ("--resume nowhere", "not a run folder"),
    ],
)
def test_bad_input_is_refused_in_one_line(line, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        pqn_rnn.parse_args(line.split())
    assert words in str(error.value) and "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_refusal_exits_with_2_and_one_line(tmp_path):
    process = command("--env-id", "NavigatorEazy", cwd=tmp_path)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 2 and err.count("\n") == 1 and "NavigatorEasy" in err and not out
    assert not list(tmp_path.iterdir())


def test_resuming_with_other_arguments_says_which(run):
    started = rf"--learning-rate {pqn_rnn.Args.learning_rate}"
    with pytest.raises(UserError, match=rf"{started}.*--gamma 0.99|--gamma 0.99.*{started}"):
        pqn_rnn.parse_args(["--resume", str(run), "--learning-rate", "0.1", "--gamma", "0.5"])
    again = pqn_rnn.parse_args(["--resume", str(run), "--log-every", "32", "--eval-every", "0"])
    assert again.hidden_size == 16 and again.log_every == 32


def test_resuming_a_folder_without_a_checkpoint(tmp_path):
    args = small(run_dir=str(tmp_path))
    folder = pqn_rnn.make_run_folder(args)
    process = command("--resume", folder)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2 and "no sound checkpoint" in err and err.count("\n") == 1
    assert [path.name for path in folder.iterdir()] == ["args.json"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"script": "pqn_rnn", "args": {"wings": 2}}', '{"script": 1, "args": 2}']
)
def test_resuming_with_an_args_json_of_another_shape(tmp_path, text):
    (tmp_path / "args.json").write_text(text)
    with pytest.raises(UserError, match="no readable args.json|--wings, which this"):
        pqn_rnn.parse_args(["--resume", str(tmp_path)])


def test_args_json_is_plain_json_and_names_the_code_that_ran(run):
    about = json.loads((run / "args.json").read_text(), parse_constant=lambda word: pytest.fail(word))
    assert {"popgym-arcade", "tyro", "tensorboard"} <= set(about["versions"])
    assert pqn_rnn.read_args(run) == small(run_dir=str(run.parent))


def test_a_machine_without_git_trains_as_well(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert pqn_rnn.git_commit() is None


def test_unfinished_checkpoints_are_cleared_away_by_the_next_save(tmp_path):
    args = small(run_dir=str(tmp_path))
    state = pqn_rnn.make_train(args)[0](jax.random.key(0))
    folder = pqn_rnn.make_run_folder(args)
    pqn_rnn.save_checkpoint(folder, 32, state)
    unfinished = folder / "checkpoints" / "64.orbax-checkpoint-tmp"
    shutil.copytree(folder / "checkpoints" / "32", unfinished)
    assert pqn_rnn.restore_checkpoint(folder, args)[0] == 32 and unfinished.exists()
    pqn_rnn.save_checkpoint(folder, 96, state)
    assert not unfinished.exists()


def test_a_checkpoint_of_another_network_is_refused_by_name(run, tmp_path):
    copied = shutil.copytree(run, tmp_path / "run")
    about = json.loads((copied / "args.json").read_text())
    about["args"]["hidden_size"] = 8
    (copied / "args.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match="does not fit this pqn_rnn.py") as error:
        pqn_rnn.load_run(copied)
    assert re.search(r"remember\S* is float32\[.*\] there, here float32\[", str(error.value))
    about["args"] |= {"hidden_size": 16, "depth": 3}
    (copied / "args.json").write_text(json.dumps(about))
    with pytest.raises(UserError, match="started with --depth, which this pqn_rnn.py does not have"):
        pqn_rnn.load_run(copied)


def test_parameters_alone_can_be_loaded_and_what_is_strange_among_them_is_named(run, tmp_path):
    args, params = pqn_rnn.load_run(run)
    alone = {"params": params}
    strange = {"params": params | {"wing": jnp.zeros(1)}}
    for step, state in ((1, alone), (2, strange)):
        (tmp_path / "args.json").write_text((run / "args.json").read_text())
        pqn_rnn.save_checkpoint(tmp_path, step, state)
    assert_equal(pqn_rnn.load_run(tmp_path, 1)[1], params)
    with pytest.raises(UserError, match=r"params\.wing is not here"):
        pqn_rnn.load_run(tmp_path)
    with pytest.raises(UserError, match="does not fit this pqn_rnn.py.*opt_state|actor"):
        shutil.rmtree(tmp_path / "checkpoints" / "2")
        pqn_rnn.restore_checkpoint(tmp_path, args)
    with pytest.raises(UserError, match="no sound checkpoint of step 3"):
        pqn_rnn.load_run(tmp_path, 3)


def test_every_flag_is_read():
    source = (ROOT / "pqn_rnn.py").read_text()
    for field in dataclasses.fields(Args):
        uses = re.findall(rf"\b(?:args|self|saved)\.{field.name}\b", source)
        assert uses, field.name


def test_help_has_a_line_for_every_flag():
    out, _ = command("--help").communicate(timeout=120)
    for field in dataclasses.fields(Args):
        assert pqn_rnn.flag(field.name) in out
