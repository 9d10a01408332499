"""What every training script promises: seeds, chunks, truncation, run folders, resuming, refusals.

pqn_rnn.py has tests of its own, and the others carry copies of its parts (test_copies.py): here is what could still go
wrong in them.
"""

import csv
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces
from scripts import (
    ALL,
    OFF_POLICY,
    ON_POLICY,
    PIXEL,
    arcade,
    fresh_params,
    learned_return,
    programs,
    script,
    small,
    trained,
)
from small import assert_equal
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_pqn_rnn_training import jaxprs

import popgym_arcade

ROOT = Path(__file__).parents[1]
NEW = [name for name in ALL if name != "pqn_rnn"]
NEW_PIXEL = [name for name in PIXEL if name != "pqn_rnn"]
PPO = {"policy_loss", "value_loss", "entropy", "old_approx_kl", "approx_kl", "clipfrac", "explained_variance"}
NEW_ON_POLICY = [name for name in NEW if name in ON_POLICY]
LOSSES = dict.fromkeys(("pqn_mlp", *OFF_POLICY), {"td_loss", "q_values"})
LOSSES |= dict.fromkeys(("ppo_mlp", "ppo_rnn", "ppo_continuous_action"), PPO)
LOSSES["impala_popart"] = {"policy_loss", "value_loss", "entropy", "rho", "rho_clipped", "explained_variance"}
POLICY_GRADIENT = ("ppo_mlp", "ppo_rnn", "ppo_continuous_action", "impala_popart")
# In the place of one flag another there
ENV_ID = {name: "--env-ids" if name == "impala_popart" else "--env-id" for name in ALL}


@pytest.fixture(scope="module", params=NEW)
def run(request, tmp_path_factory):
    """The script's name and the folder of a complete small run."""
    name = request.param
    return name, script(name).main(small(name, run_dir=str(tmp_path_factory.mktemp(name))))


def rows_of(folder):
    with (folder / "eval.csv").open() as file:
        return list(csv.DictReader(file))


def test_run_folder_holds_what_it_promises(run):
    name, folder = run
    memory = "MinGRU" if name.endswith("rnn") else "none"
    env_id = small(name).env_id
    assert re.fullmatch(rf"{env_id}__full__{name}__{memory}__0__\d{{8}}-\d{{6}}(-\d+)?", folder.name)
    about = json.loads((folder / "args.json").read_text(), parse_constant=lambda word: pytest.fail(word))
    assert about["script"] == name and about["versions"]["jax"] == jax.__version__
    assert (folder / "curve.png").stat().st_size > 1000
    assert sorted(int(path.name) for path in (folder / "checkpoints").iterdir()) == [128, 192, 256]
    found = [(int(row["global_step"]), row["policy"], row["env_id"], row["partial_obs"]) for row in rows_of(folder)]
    assert found == [
        (step, policy, env_id, "False") for step, policy in ((0, "random"), (128, "greedy"), (256, "greedy"))
    ]


def test_tensorboard_holds_the_promised_curves(run):
    name, folder = run
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    curves = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
    wanted = {f"losses/{loss}" for loss in LOSSES[name] | {"grad_norm"}} | {"eval/episodic_return"}
    charts = ["SPS", "learning_rate", "compile_seconds"] + ["epsilon"] * (name not in POLICY_GRADIENT)
    wanted |= {f"charts/{chart}" for chart in charts}
    of_task = "episodes episodic_return episodic_length explained_variance eval_return"
    wanted |= {f"CartPole-v1/{tag}" for tag in of_task.split() if name == "impala_popart"}
    # (no episode of Pendulum is over after 64 steps)
    optional = {f"charts/{chart}" for chart in ("episodic_return", "episodic_length", "episodes")}
    assert wanted <= set(curves) <= wanted | optional
    assert name == "ppo_continuous_action" or optional <= set(curves)
    assert [point.step for point in curves["losses/grad_norm"]] == [64, 128, 192, 256]


def test_a_loaded_run_gives_the_reported_return(run):
    name, folder = run
    module = script(name)
    args, params = module.load_run(folder)
    assert args == small(name, run_dir=str(folder.parent), num_devices=1)  # looked at on one device
    key = jax.random.fold_in(module.make_keys(args)[1], args.total_timesteps)
    evaluation = jax.jit(module.make_evaluate(args))(params, key, module.POLICIES["greedy"])
    assert float(rows_of(folder)[-1]["return_mean"]) == np.asarray(evaluation.returns, float).mean()
    assert float(rows_of(folder)[-1]["length_mean"]) == np.asarray(evaluation.lengths, float).mean()


def test_resuming_with_other_arguments_says_which(run):
    name, folder = run
    with pytest.raises(script(name).UserError, match="--gamma 0.99"):
        script(name).parse_args(["--resume", str(folder), "--gamma", "0.5"])
    assert script(name).parse_args(["--resume", str(folder), "--log-every", "32"]).log_every == 32


def test_a_run_of_another_script_is_refused(run):
    name, folder = run
    with pytest.raises(script("pqn_rnn").UserError, match="no readable args.json|use that script"):
        script("pqn_rnn").parse_args(["--resume", str(folder)])


@pytest.mark.slow
@pytest.mark.parametrize("name", NEW)
def test_stopped_and_resumed_equals_unbroken(name, tmp_path, monkeypatch):
    module, args = script(name), small(name, total_timesteps=128, run_dir=str(tmp_path / "whole"))
    whole = module.main(args)
    run_updates = module.run_updates

    def one_update(train_chunk, state, _updates, stop, pace):
        os.kill(os.getpid(), signal.SIGINT)
        return run_updates(train_chunk, state, 1, stop, pace)

    with monkeypatch.context() as patch:
        patch.setattr(module, "run_updates", one_update)
        with pytest.raises(SystemExit) as stopped:
            module.main(dataclasses.replace(args, run_dir=str(tmp_path / "broken")))
    assert stopped.value.code == 130
    broken = next((tmp_path / "broken").iterdir())
    assert [path.name for path in (broken / "checkpoints").iterdir()] == ["32"]
    module.main(module.parse_args(["--resume", str(broken)]))
    one, other = ([{**row, "wall_seconds": None} for row in rows_of(folder)] for folder in (whole, broken))
    assert one == other
    states = [module.restore_checkpoint(folder, args) for folder in (whole, broken)]
    assert states[0][0] == states[1][0] == 128
    assert_equal(states[0][1], states[1][1])


@pytest.mark.parametrize("name", NEW)
def test_a_seed_repeats_and_seeds_together_equal_seeds_alone(name):
    args = small(name, num_seeds=2, seed=3)
    state, metrics = trained(name, args, 3)
    for i in range(2):
        alone, alone_metrics = trained(name, dataclasses.replace(args, num_seeds=1, seed=3 + i), 3)
        assert_equal(jax.tree.map(lambda x, i=i: x[i], state.params), alone.params, atol=1e-5)
        assert_equal(jax.tree.map(lambda x, i=i: x[i], state.actor.env_state), alone.actor.env_state, atol=1e-4)
        assert_equal(metrics["episodes"][i], alone_metrics["episodes"])
    assert_equal(alone, trained(name, dataclasses.replace(args, num_seeds=1, seed=4), 3)[0])
    weights = [np.concatenate([np.ravel(leaf[i]) for leaf in jax.tree.leaves(state.params)]) for i in range(2)]
    assert not np.array_equal(*weights)


@pytest.mark.slow
@pytest.mark.parametrize("name", NEW_PIXEL)
def test_seeds_together_equal_seeds_alone_from_pixels(name):
    args = arcade(name, num_seeds=2)
    state, _ = trained(name, args, 2)
    alone, _ = trained(name, dataclasses.replace(args, num_seeds=1, seed=1), 2)
    pairs = zip(*map(jax.tree.leaves, (state.params, alone.params)), strict=True)
    distance = np.concatenate([np.ravel(np.abs(x[1] - y)) for x, y in pairs])
    # Adam makes whole steps of a gradient that is but rounding: on one machine one weight of ppo_rnn's four million
    # was 2.5e-5 away, after having moved by up to 3e-3.
    assert (distance > 1e-5).mean() <= 1e-6 and distance.max() < 1e-4


@pytest.mark.parametrize("name", NEW)
def test_chunks_add_up(name):
    args = small(name)
    whole, metrics = trained(name, args, 4)
    _, train_chunk = programs(name, dataclasses.replace(args, seed=0))
    part, first = trained(name, args, 1)
    part, second = train_chunk(part, jnp.int32(3))
    assert_equal(whole, part)
    assert_equal(metrics, jax.tree.map(jnp.add, first, second), atol=1e-4)


@pytest.mark.parametrize("name", ON_POLICY)
def test_a_minibatch_holds_what_belongs_together(name):
    """One minibatch is the whole rollout: in whatever order, the gradient is the same."""
    init, train_chunk = programs(name, small(name, num_minibatches=1, update_epochs=1))
    states = [init(jax.random.key(0)).replace(key=jax.random.key(order)) for order in (1, 2)]
    (one, metrics), (other, _) = (train_chunk(state, jnp.int32(1)) for state in states)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), one.params, other.params)
    distance = jax.tree.map(lambda x, y: float(jnp.abs(x - y).max()), one.params, states[0].params)
    assert max(jax.tree.leaves(distance)) > 1e-4
    if name.startswith("ppo"):  # the policy is still the one that played
        assert abs(float(metrics["old_approx_kl"])) < 1e-5 and float(metrics["clipfrac"]) == 0


@pytest.mark.parametrize("name", ON_POLICY)
@pytest.mark.parametrize("length", [1, 2, 500, 70_000])
def test_random_order_has_each_number_once_in_each_row(name, length):
    order = np.asarray(script(name).random_order(jax.random.key(0), 3, length))
    assert order.dtype == np.int32 and (np.sort(order, axis=1) == np.arange(length)).all()
    assert length < 3 or not (order[0] == order[1]).all()


def test_every_order_is_as_probable():
    orders = script("ppo_mlp").random_order(jax.random.key(0), 6000, 3)
    _, counts = np.unique(np.asarray(orders), axis=0, return_counts=True)
    assert len(counts) == 6 and ((counts > 880) & (counts < 1120)).all()  # four standard deviations


@pytest.mark.parametrize("num_seeds", [1, 2])
@pytest.mark.parametrize("name", NEW_ON_POLICY)
def test_final_observations_are_read_in_a_cond_also_with_seeds(name, num_seeds):
    module = script(name)
    args = (arcade if name in PIXEL else small)(name, num_seeds=num_seeds)
    init, train_chunk = module.make_train(args)
    state = jax.eval_shape(module.seed_by_seed(init, args), module.make_keys(args)[0])
    program = jax.make_jaxpr(module.over_seeds(train_chunk, args, (0, None)))(state, jnp.int32(1))
    with_network = [
        cond
        for cond, _ in jaxprs(program.jaxpr)
        if cond.primitive.name == "cond"
        and any(
            e.primitive.name == "dot_general" for branch in cond.params["branches"] for e, _ in jaxprs(branch.jaxpr)
        )
    ]
    assert len(with_network) == 1
    if name in PIXEL:  # its operands hold states, not frames
        assert not [variable for variable in with_network[0].invars if variable.aval.shape[-3:] == (128, 128, 3)]


@pytest.mark.parametrize("name", NEW_ON_POLICY)
def test_truncation_bootstraps_from_the_final_observation(name):
    args = small(name, env_params=("max_steps_in_episode=3",))
    module = script(name)
    env, env_params = module.make_env(args)
    _, begin, act = module.make_actor(args)
    network, params = fresh_params(name, args)
    actor, act = jax.jit(begin, static_argnums=1)(jax.random.key(1), args.num_envs), jax.jit(act)
    for t in range(3):
        before = actor
        actor, transition, info = act(params, before, module.POLICIES["greedy"])
        assert bool(transition.truncated.all()) == (t == 2) and not transition.terminated.any()
        assert t == 2 or (transition.final_value == 0).all()
    more, forward = (), jax.jit(module.forward, static_argnums=0)
    carry = module.initial_carry(network, args.num_envs)
    if name == "impala_popart":
        more = transition.action[None], jnp.zeros((1, args.num_envs), bool)
    if name.endswith("rnn"):  # with the memory as it was
        last = before.obs[None], before.prev_action[None], before.start[None]
        carry, _ = forward(network, params, before.carry, *last)
        more = transition.action[None], jnp.zeros((1, args.num_envs), bool)
    _, output = forward(network, params, carry, info["final_observation"][None], *more)
    value = output.q[0].max(axis=-1) if name.startswith("pqn") else output.value[0]
    np.testing.assert_allclose(transition.final_value, value, atol=1e-5)
    assert (jnp.abs(transition.final_value) > 0).all() and (actor.episode_length == 0).all()


def ids_for(name):
    """Every gymnax id whose actions the script takes, but the one that wants a download."""
    kind = spaces.Discrete if name in PIXEL else spaces.Box
    for env_id in gymnax.registered_envs:
        if env_id not in (*popgym_arcade.REGISTERED_ENVIRONMENTS, "MNISTBandit-bsuite", "Lamps"):
            env, params = gymnax.make(env_id)
            if isinstance(env.action_space(params), kind):
                yield env_id


def args_of_one_update(name, env_id):
    memory = {"memory": "MLP"} if name.endswith("rnn") else {}
    once = {"update_epochs": 1, "num_minibatches": 1} if name in ON_POLICY else {}
    return small(name, env_id=env_id, **once, **memory)


@pytest.mark.parametrize("name", NEW)
def test_every_gymnax_id_can_be_trained_on(name):
    """Traced only, since compiling takes seconds each; pqn_rnn.py, whose parts these are, runs an update on all."""
    found = list(ids_for(name))
    assert len(found) >= (20 if name in PIXEL else 5)
    for env_id in found:
        args = args_of_one_update(name, env_id)
        init, train_chunk = script(name).make_train(args)
        before = jax.eval_shape(init, jax.random.key(0))
        after, _ = jax.eval_shape(train_chunk, before, jax.ShapeDtypeStruct((), jnp.int32))
        assert jax.tree.structure(before) == jax.tree.structure(after), env_id


KINDS = {True: ("Catch-bsuite", "Breakout-MinAtar", "FourRooms-misc"), False: ("Reacher-misc", "PointRobot-misc")}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "env_id"), [(name, env_id) for name in NEW for env_id in KINDS[name in PIXEL]])
def test_one_update_on_gymnax_ids(name, env_id):
    state, metrics = trained(name, args_of_one_update(name, env_id), 2 if name in OFF_POLICY else 1)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
    assert float(metrics["grad_norm"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", NEW_PIXEL)
def test_one_update_from_pixels_also_in_bfloat16(name):
    results = {}
    for precision in ("float32", "bfloat16"):
        state, metrics = trained(name, arcade(name, precision=precision), 2 if name in OFF_POLICY else 1)
        assert state.actor.obs.dtype == jnp.uint8
        # PopArt's counter beside the parameters is an integer
        floats = [leaf for leaf in jax.tree.leaves(state.params) if not jnp.issubdtype(leaf.dtype, jnp.integer)]
        assert floats and all(leaf.dtype == jnp.float32 for leaf in floats)
        results[precision] = float(metrics["grad_norm"])
    assert results["bfloat16"] == pytest.approx(results["float32"], rel=0.25) and results["float32"] > 0


@pytest.mark.parametrize("encoder", ["patch", "paper"])
@pytest.mark.parametrize("name", NEW_PIXEL)
def test_no_convolution_is_left_in_a_cpu_program(name, encoder):
    init, train_chunk = script(name).make_train(arcade(name, encoder=encoder))
    text = jax.jit(train_chunk).lower(jax.eval_shape(init, jax.random.key(0)), jnp.int32(1)).as_text()
    assert "stablehlo.dot_general" in text and "stablehlo.convolution" not in text


EVERYWHERE = [
    ("--env-id CartPoleEazy", "did you mean"),
    ("--env-params speed=3", "max_steps_in_episode"),
    ("--num-envs 0", "--num-envs 0: use 1 or more"),
    ("--total-timesteps 3000000000", "a number from 1 to"),
    ("--env-id MNISTBandit-bsuite", "downloads"),
    ("--precision float8", "bfloat16"),
    ("--learning-rate nan", "--learning-rate"),
    ("--exp-name a/b", "without /"),
    ("--target-return 0.5 --eval-every 0", "--eval-every"),
    ("--hidden-size 2000000", "lower --hidden-size"),
    ("--resume nowhere", "not a run folder"),
]
PIXELS_ONLY = [
    ("--env-id Pendulum-v1", "Discrete"),
    ("--env-id CartPole-v1 --partial-obs", "no partially observable twin"),
    ("--obs-size 100", "128 or 256"),
    ("--encoder resnet", "patch, paper"),
    ("--env-id CartPole-v1 --capture-video", "popgym_arcade ids only"),
    ("--env-id CartPole-v1 --env-params gravity=1e999", "gravity"),
]
PPO_ONLY = [
    ("--clip-coef 0", "--clip-coef"),
    ("--gae-lambda 1.5", "from 0 to 1"),
    ("--ent-coef -1", "--ent-coef"),
    ("--target-kl 0", "--target-kl"),
    ("--num-envs 2 --num-steps 1 --num-minibatches 2", "--no-norm-adv"),
]
ROLLOUTS_ONLY = [
    ("--num-minibatches 7", "use 4 or 8"),
    ("--num-envs 100000 --num-steps 100000 --num-minibatches 7", "a rollout has at most"),
]
REPLAY_ONLY = [
    ("--replay-storage films", "states, frames"),
    ("--tau 2", "from 0 to 1"),
    ("--learning-starts 2000000", "use no more"),
    ("--buffer-size 10", "--buffer-size 10"),
    ("--batch-size 0", "--batch-size 0: use 1 or more"),
]
REFUSALS = [(name, *case) for name in NEW for case in EVERYWHERE]
REFUSALS += [(name, *case) for name in NEW_ON_POLICY for case in ROLLOUTS_ONLY]
REFUSALS += [(name, *case) for name in OFF_POLICY for case in REPLAY_ONLY]
REFUSALS += [("dqn_mlp", "--train-frequency 12", "use 8 or 16"), ("dqn_mlp", "--train-frequency 40", "use 32 or 64")]
REFUSALS += [
    ("dqn_rnn", "--burn-in 12", "use 8 or 16"),
    ("dqn_rnn", "--n-step 17", "more than --num-steps 16"),
    ("dqn_rnn", "--burn-in 1 --train-frequency 64", "does not divide the 32 x 1 = 32 steps of an update: use 32"),
    ("dqn_rnn", "--burn-in 40", "use 32 or 48"),
    ("dqn_rnn", "--train-frequency 100", "use 64 or 128"),
    ("dqn_rnn", "--train-frequency 1000", "use 512"),
    ("dqn_rnn", "--total-timesteps 1000", "a sequence in every environment takes 1024 steps"),
    ("dqn_rnn", "--memory Elephant", "MinGRU"),
]
REFUSALS += [(name, *case) for name in NEW_PIXEL for case in PIXELS_ONLY]
REFUSALS += [(name, *case) for name in NEW if name.startswith("ppo") for case in PPO_ONLY]
REFUSALS += [("ppo_rnn", "--memory Elephant", "MinGRU"), ("ppo_continuous_action", "--env-id CartPoleEasy", "Box")]


@pytest.mark.parametrize(("name", "line", "words"), REFUSALS)
def test_bad_input_is_refused_in_one_line(name, line, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(script(name).UserError) as error:
        script(name).parse_args(line.replace("--env-id ", f"{ENV_ID[name]} ").split())
    assert words in str(error.value) and "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", NEW)
def test_a_run_of_another_script_is_not_resumed(name, tmp_path):
    (tmp_path / "args.json").write_text(json.dumps({"script": "elephant", "args": {"trunk": 1}}))
    with pytest.raises(script(name).UserError, match="was made by elephant.py: use that script"):
        script(name).parse_args(["--resume", str(tmp_path)])


@pytest.mark.parametrize("name", NEW)
def test_help_has_a_line_for_every_flag(name, capsys):
    with pytest.raises(SystemExit) as ended:
        script(name).parse_args(["--help"])
    out = capsys.readouterr().out
    assert ended.value.code == 0
    for field in dataclasses.fields(script(name).Args):
        assert script(name).flag(field.name) in out


@pytest.mark.parametrize("name", NEW)
def test_a_refusal_on_the_command_line(name, tmp_path):
    """One line and exit code 2."""
    line = [sys.executable, str(ROOT / f"{name}.py"), ENV_ID[name], "Nope"]
    refused = subprocess.run(line, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1 and not refused.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", NEW_PIXEL)
def test_capture_video(name, tmp_path):
    from PIL import Image

    args = arcade(name, env_params=("max_steps_in_episode=3",))
    params = script(name).make_train(args)[0](jax.random.key(0)).params
    script(name).record_episode(args, params, jax.random.key(1), tmp_path / "episode.gif")
    with Image.open(tmp_path / "episode.gif") as picture:
        assert picture.n_frames == 4 and picture.size == (512, 256)


# ------------------------------------------------------------------------------------------------------------- learning


@pytest.mark.optimized
@pytest.mark.slow
@pytest.mark.parametrize("name", ["pqn_mlp", "ppo_mlp"])
def test_cart_pole_is_learned(name):
    """Random play gets 22; the flags and the budget are those of benchmark/classic_control.sh."""
    flags = {"num_envs": 4, "num_steps": 128, "num_minibatches": 4, "update_epochs": 4, "hidden_size": 64}
    pqn = {"q_lambda": 0.9, "exploration_fraction": 0.5, "end_e": 0.02} if name == "pqn_mlp" else {}
    assert learned_return(name, small(name, total_timesteps=500_000, **flags, **pqn)) > 400


@pytest.mark.optimized
@pytest.mark.slow
def test_cart_pole_is_learned_from_replay():
    """The flags and the budget are those of benchmark/dqn.sh."""
    flags = {"num_envs": 10, "train_frequency": 10, "batch_size": 128, "hidden_size": 128, "buffer_size": 100_000}
    flags |= {
        "learning_rate": 2.5e-4,
        "target_network_frequency": 2_000,
        "exploration_fraction": 0.5,
        "max_grad_norm": 10,
    }
    args = script("dqn_mlp").Args(env_id="CartPole-v1", total_timesteps=500_000, **flags)
    assert learned_return("dqn_mlp", args.checked()) > 400


@pytest.mark.optimized
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["ppo", "dqn"])
def test_a_memory_learns_what_no_memory_can(algorithm):
    """MemoryChain: remember one bit for ten steps. Return 1 with memory, 0 on average without."""
    common = {"env_id": "MemoryChain-bsuite", "env_params": ("memory_length=10",), "total_timesteps": 100_000}
    common |= {"num_envs": 16, "learning_rate": 1e-3, "hidden_size": 32}
    common |= {"num_steps": 32, "num_minibatches": 4} if algorithm == "ppo" else {}
    with_memory, without = script(f"{algorithm}_rnn"), script(f"{algorithm}_mlp")
    assert learned_return(with_memory.SCRIPT, with_memory.Args(prev_action=False, **common).checked()) > 0.95
    assert learned_return(without.SCRIPT, without.Args(**common).checked()) < 0.5
