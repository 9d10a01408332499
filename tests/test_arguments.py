"""What is refused, in one line and before anything is compiled or written. test_contract.py has each script's flags."""

import dataclasses
import re
from typing import Annotated

import jax
import pytest
from runs import ROOT, command, parsed
from scripts import ALL, script, small

import pqn_mlp
from popgym_arcade.baselines import running
from popgym_arcade.baselines.arguments import RunArgs
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import OneOf, Positive, Range, check_limits, flag

REFUSED = [
    ("--env-id CartPoleEazy", "did you mean CartPoleEasy"),
    ("--env-id cartpole", "CartPole"),
    ("--env-id CartPole-v1 --partial-obs", "no partially observable twin"),
    ("--env-id CartPole-v1 --obs-size 256", "no other size of frames: leave out --obs-size"),
    ("--env-id MNISTBandit-bsuite", "downloads"),
    ("--env-id Pendulum-v1", "Box actions: use one with Discrete actions"),
    ("--env-id CartPole-v1 --capture-video", "environments with pixels only"),
    ("--obs-size 100", "--obs-size 100: use 128 or 256"),
    ("--env-params speed=3", "max_steps_in_episode"),
    ("--env-params max_steps_in_episode=many", "as int, like "),
    ("--env-params max_steps_in_episode=1e400", "as int, like "),
    ("--env-params max_steps_in_episode=30.7", "as int, like "),
    ("--env-params max_steps_in_episode=3000000000", "as int, like "),
    ("--env-params max_steps_in_episode=[1,2]", "as int, like "),
    ("--env-params max_steps_in_episode", "as int, like "),
    ("--env-id CartPole-v1 --env-params gravity=1e999", "gravity"),
    ("--env-params max_steps_in_episode=0", "max_steps_in_episode=0: use 1 or more"),
    ("--env-id CartPole-v1 --env-params max_steps_in_episode=-5", "max_steps_in_episode=-5: use 1 or more"),
    ("--env-id MemoryChain-bsuite --env-params memory_length=0", "memory_length=0: use 1 or more"),
    (
        "--env-id MemoryChain-bsuite --env-params memory_length=1000",
        "use less than max_steps_in_episode, which is 1000",
    ),
    (
        "--env-id MemoryChain-bsuite --env-params max_steps_in_episode=4",
        "memory_length=5: use less than max_steps_in_episode, which is 4",
    ),
    ("--env-params max_steps_in_episode=9 max_steps_in_episode=9", "has max_steps_in_episode 2 times: give it once"),
    ("--total-timesteps 1.5", "--total-timesteps 1.5: use a whole number"),
    (f"--exp-name {'x' * 300}", "makes the folder's name too long: use one that is"),
    (f"--exp-name {'x' * 300} --run-dir {'y' * 300}", "--exp-name"),
    ("--num-envs 0", "--num-envs 0: use 1 or more"),
    ("--total-timesteps 3000000000", "a number from 1 to"),
    ("--total-timesteps 2147483647", "2147483647: use 2147482624 or less, in whole updates"),
    ("--compile-cache /dev/null/x", "--compile-cache /dev/null/x: /dev/null is not a folder that can be written to"),
    ("--distributed --coordinator-address h:1 --num-processes 0 --process-id 0", "--num-processes 0: use 1 or more"),
    ("--seed 2147483647", "from 0 to 2147483646"),
    ("--seed -1", "--seed -1: use 0 or more"),
    ("--precision float8", "bfloat16"),
    ("--learning-rate nan", "--learning-rate"),
    ("--learning-rate inf", "from 0 to 1"),
    ("--max-grad-norm 0", "--max-grad-norm"),
    ("--anneal-fraction 0", "--anneal-fraction 0.0: use a number from 1e-06 to 1"),
    ("--exp-name a/b", "without /"),
    ("--target-return nan", "finite"),
    ("--target-return 0.5 --eval-every 0", "--eval-every"),
    ("--save-every 10", "--save-every 10"),
    ("--save-every 100000 --checkpoint-every 0", "use a --checkpoint-every from 1 to 100000"),
    ("--num-devices 2", "from 1 to 1, or 0"),
    ("--resume nowhere", "not a run folder"),
    ("--from-run nowhere", "not a run folder"),
    ("--resume a --from-run b", "--resume continues a run, --from-run starts a new one"),
    ("--process-id 0", "give --distributed"),
    ("--distributed --coordinator-address here --num-processes 2 --process-id 0", "write HOST:PORT"),
    ("--distributed --coordinator-address h:1 --num-processes 2 --process-id 2", "from 0 to 1"),
]


@pytest.mark.parametrize(("line", "words"), REFUSED)
def test_bad_input_is_refused_in_one_line(line, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        parsed(*line.split())
    assert words in str(error.value) and "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("line", "words"),
    [("--env-id NavigatorEazy", "NavigatorEasy"), ("--hidden-size 2000000", "lower --hidden-size")],
)
def test_a_refusal_on_the_command_line_is_one_line_and_exit_code_2(line, words, tmp_path):
    process = command(*line.split(), cwd=tmp_path)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 2 and err.count("\n") == 1 and err.startswith("pqn_mlp.py: error: ") and words in err
    assert not out and not list(tmp_path.iterdir())


def test_total_timesteps_are_rounded_up_to_whole_updates():
    assert small("pqn_mlp", total_timesteps=33).total_timesteps == 64


def test_limits_are_read_from_types():
    @dataclasses.dataclass(frozen=True)
    class Args:
        size: Annotated[int, Range(2, 5)] = 2
        bound: Positive | None = None
        word: Annotated[str, OneOf(("a", "b"))] = "a"

    for fine in (Args(), Args(size=5, bound=1e-6, word="b")):
        check_limits(fine)
    for bad, message in (
        (Args(size=6), "--size 6: use a number from 2 to 5"),
        (Args(size=1), "--size 1: use a number from 2 to 5"),
        (Args(bound=0.0), "--bound 0.0: use 1e-06 or more"),
        (Args(bound=float("nan")), "--bound nan: use a number from"),
        (Args(word="c"), "--word 'c' is unknown: use one of a, b"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            check_limits(bad)


@pytest.mark.parametrize("name", ALL)
def test_every_flag_is_read_somewhere(name):
    """In the script if the flag is its own, else in the baselines."""
    common = {field.name for field in dataclasses.fields(RunArgs)}
    package = "".join(path.read_text() for path in (ROOT / "popgym_arcade/baselines").rglob("*.py"))
    source = (ROOT / f"{name}.py").read_text()
    for field in dataclasses.fields(script(name).Args):
        text = package if field.name in common else source + package
        read = re.search(rf"\b(args|self|task|saved|given)\.{field.name}\b", text) or f'args, "{field.name}"' in text
        assert read or field.name in running.command_line.NOWHERE, field.name


# ---------------------------------------------------------------------------------------------------------- devices


@pytest.mark.parametrize("envs, minibatches, seeds, count, message", [
    (30, 2, 1, 8, "--num-envs 16 or 32, or --num-devices 5 or 15, or a multiple of 8 as --num-seeds"),
    (8, 4, 1, 4, "--num-envs 16, or --num-devices 2, or"),
    (8, 4, 3, 4, "--num-envs 16, or --num-devices 2, or"),
    (3, 6, 1, 2, "--num-envs 12, or --num-devices 1, or"),
])  # fmt: skip
def test_what_does_not_divide_is_refused_with_what_does(monkeypatch, envs, minibatches, seeds, count, message):
    monkeypatch.setattr(jax, "device_count", lambda: count)
    args = pqn_mlp.Args(num_envs=envs, num_minibatches=minibatches, num_seeds=seeds)
    with pytest.raises(UserError, match=message):
        args.check_devices(group=minibatches)


@pytest.mark.parametrize(
    "envs, minibatches, seeds, count", [(32, 4, 1, 8), (30, 2, 8, 8), (30, 2, 16, 8), (8, 1, 1, 1)]
)
def test_what_divides_is_not_refused(monkeypatch, envs, minibatches, seeds, count):
    monkeypatch.setattr(jax, "device_count", lambda: count)
    pqn_mlp.Args(num_envs=envs, num_minibatches=minibatches, num_seeds=seeds).check_devices(group=minibatches)


def test_the_page_has_the_words_of_the_refusal(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    args = script("pqn_rnn").Args()
    with pytest.raises(UserError) as error:
        args.check_devices(group=args.num_minibatches)
    assert f"pqn_rnn.py: error: {error.value}" in " ".join((ROOT / "docs/scaling.md").read_text().split())


def test_the_spelling_of_a_flag():
    assert flag("num_envs") == "--num-envs"
