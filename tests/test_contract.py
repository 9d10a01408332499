"""The contract of a training script (design.md, section 2): seven names, and what the baselines may rely on.

A script with these names trains, resumes, and can be evaluated and analysed. What the baselines do with them is tested
once, with pqn_mlp.py: test_run_folder.py, test_resume.py, test_survival.py, test_arguments.py, test_devices.py.
"""

import dataclasses
import inspect
import re
import signal
from pathlib import Path

import gymnax
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from gymnax.environments import spaces
from runs import assert_end_alike, assert_equal, only, parsed, resumed, rows, saved_steps, scalars
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
    usually,
)

import popgym_arcade
from popgym_arcade.baselines.devices.mesh import leaf_name, over_seeds, seed_by_seed
from popgym_arcade.baselines.environment import in_names
from popgym_arcade.baselines.errors import UserError
from popgym_arcade.baselines.limits import flag
from popgym_arcade.baselines.running import run as running
from popgym_arcade.baselines.running.checkpoints import restore
from popgym_arcade.baselines.running.evaluation import make_keys
from popgym_arcade.baselines.running.metrics import repeat
from popgym_arcade.baselines.running.programs import abstract_state
from popgym_arcade.baselines.scripts import CONTRACT

ROOT = Path(__file__).parents[1]
PPO = {"policy_loss", "value_loss", "entropy", "old_approx_kl", "approx_kl", "clipfrac", "explained_variance"}
LOSSES = dict.fromkeys(("pqn_mlp", "pqn_rnn", *OFF_POLICY), {"td_loss", "q_values"})
LOSSES |= dict.fromkeys(("ppo_mlp", "ppo_rnn", "ppo_continuous_action", "ppo_selfplay"), PPO)
LOSSES["impala_popart"] = {"policy_loss", "value_loss", "entropy", "rho", "rho_clipped", "explained_variance"}
POLICY_GRADIENT = ("ppo_mlp", "ppo_rnn", "ppo_continuous_action", "ppo_selfplay", "impala_popart")
MAX_LINES = {  # so that a script is read in twenty minutes
    **{"pqn_mlp": 380, "pqn_rnn": 420, "ppo_mlp": 460, "ppo_rnn": 500, "ppo_continuous_action": 450},
    **{"dqn_mlp": 520, "dqn_rnn": 620, "impala_popart": 680, "ppo_selfplay": 450},
}
FOR_ONE = tuple(name for name in ON_POLICY if name != "ppo_selfplay")  # the other half of its tests: test_selfplay.py
PARTS = ("arguments", "network", "algorithm", "main")  # of a script, in this order


# ------------------------------------------------------------------------------------------------------------- form


@pytest.mark.parametrize("name", ALL)
def test_a_script_has_the_seven_names(name):
    module = script(name)
    assert all(hasattr(module, part) for part in CONTRACT)
    assert {"random", "greedy"} <= set(module.POLICIES)
    assert [*inspect.signature(module.forward).parameters][:6] == [
        *("network", "params", "carry", "obs", "prev_action", "start")
    ]


@pytest.mark.parametrize("name", ALL)
def test_a_script_is_short_and_its_parts_come_in_order(name):
    source = (ROOT / f"{name}.py").read_text()
    assert source.count("\n") <= MAX_LINES[name]
    parts = re.findall(r"^# -+ (.*)$", source, re.MULTILINE)
    assert tuple(part for part in parts if part in PARTS) == PARTS
    assert set(parts) - set(PARTS) <= {"tasks"}
    assert f"Run:   python {name}.py" in " ".join(source.split(" ")).replace("Run:    ", "Run:   ")
    assert "sys.argv" not in source and "print(" not in source


def test_modules_of_the_baselines_are_short_and_import_in_one_direction():
    rooms = "errors jax_defaults devices networks env_params environment scripts limits normalization episode"
    rooms = [*rooms.split(), "arguments", "tasks", "replay", "seats", "running"]
    package = ROOT / "popgym_arcade" / "baselines"
    for path in package.rglob("*.py"):
        text, room = path.read_text(), path.relative_to(package).parts[0].removesuffix(".py")
        assert text.count("\n") <= 250, path
        imported = re.findall(r"^from popgym_arcade\.baselines\.(\w+)", text, re.MULTILINE)
        assert room == "__init__" or all(rooms.index(other) <= rooms.index(room) for other in imported), path
        assert "popgym_arcade.analysis" not in text


@pytest.mark.parametrize("name", ALL)
def test_the_state_says_which_leaves_have_an_environment_axis(name):
    state = jax.eval_shape(script(name).make_train(small(name))[0], jax.random.key(0))
    leaves = {leaf_name(path): x.shape for path, x in jax.tree_util.tree_flatten_with_path(state)[0]}
    of_envs = {path: shape for path, shape in leaves.items() if path.startswith(type(state).OF_ENVS) and shape}
    seats = {1, 2} if name == "ppo_selfplay" else {1}
    assert {shape[0] for shape in of_envs.values()} == {n * small(name).num_envs for n in seats}
    assert any(path.startswith("actor.env_state") for path in of_envs)
    assert not any(path.startswith(("params", "opt_state")) for path in of_envs)


# -------------------------------------------------------------------------------------------------------------- runs


@pytest.fixture(scope="module", params=ALL)
def run(request, tmp_path_factory):
    """The script's name and the folder of a complete small run."""
    name = request.param
    return name, script(name).main(small(name, run_dir=str(tmp_path_factory.mktemp(name))))


def test_a_run_is_complete(run):
    name, folder = run
    memory = getattr(small(name), "memory", "none")
    env_id = small(name).env_id
    assert re.fullmatch(rf"{in_names(env_id)}__single__{name}__{memory}__0__\d{{8}}-\d{{6}}(-\d+)?", folder.name)
    assert saved_steps(folder) == [128, 192, 256] and (folder / "curve.png").stat().st_size > 1000
    found = [(row["global_step"], row["policy"], row["env_id"], row["partial_obs"]) for row in rows(folder)]
    steps = (("0", "random"), ("128", "greedy"), ("256", "greedy"))
    assert found == [(step, policy, env_id, "False") for step, policy in steps]


def test_tensorboard_holds_the_promised_curves(run):
    name, folder = run
    curves = scalars(folder)
    wanted = {f"losses/{loss}" for loss in LOSSES[name] | {"grad_norm"}} | {"eval/episodic_return"}
    charts = ["SPS", "learning_rate", "compile_seconds"] + ["epsilon"] * (name not in POLICY_GRADIENT)
    wanted |= {f"charts/{chart}" for chart in charts}
    of_task = "episodes episodic_return episodic_length explained_variance eval_return"
    wanted |= {f"CartPole-v1/{tag}" for tag in of_task.split() if name == "impala_popart"}
    # (no episode of Pendulum is over after 64 steps)
    charts = "episodic_return episodic_length episodes" + " episodic_return-player0 episodic_return-player1" * (
        name == "ppo_selfplay"
    )
    optional = {f"charts/{chart}" for chart in charts.split()}
    assert wanted <= set(curves) <= wanted | optional
    assert name == "ppo_continuous_action" or optional <= set(curves)
    assert [point.step for point in curves["losses/grad_norm"]] == [64, 128, 192, 256]


@pytest.mark.parametrize("run", usually("pqn_mlp", "dqn_mlp"), indirect=True)
def test_a_run_is_one_program_and_resumes_from_its_checkpoints(run):
    """Eight updates in a row, and four from the checkpoint in the middle, end where the run with its pauses did."""
    name, folder = run
    args = small(name)
    template = abstract_state(args, script(name).make_train(args)[0], make_keys(args)[0])
    middle, end = (restore(folder, step, template) for step in (128, 256))
    whole, _ = trained(name, args, 8)
    assert_equal(whole, end)
    second_half, _ = programs(name, args)[1](middle, jnp.int32(4))
    assert_equal(second_half, end)


@pytest.mark.thorough
def test_stopped_and_resumed_equals_unbroken(run, tmp_path, monkeypatch):
    name, whole = run
    with monkeypatch.context() as patch:
        patch.setattr(running, "CHUNK_SECONDS", 0)  # an update at a time
        train = running.Run.train
        patch.setattr(running.Run, "train", lambda *args: signal.raise_signal(signal.SIGINT) or train(*args))
        with pytest.raises(SystemExit) as stopped:
            script(name).main(small(name, run_dir=str(tmp_path)))
    assert stopped.value.code == 130
    broken = only(tmp_path)
    assert saved_steps(broken) == [32]
    resumed(broken)
    assert_end_alike(whole, broken)


# ---------------------------------------------------------------------------------------------------------- training


@pytest.mark.parametrize("name", usually("pqn_mlp", "dqn_mlp"))
def test_a_seed_repeats_and_seeds_together_equal_seeds_alone(name):
    # values that are nearly equal, as all are at first, would let rounding choose the action
    explore = {"end_e": 1.0} if name in OFF_POLICY else {}
    args = small(name, num_seeds=2, seed=3, **explore)
    state, metrics = trained(name, args, 3)
    for i in range(2):
        alone, alone_metrics = trained(name, dataclasses.replace(args, num_seeds=1, seed=3 + i), 3)
        distances = jax.tree.map(lambda x, y, i=i: np.abs(x[i] - y).ravel(), state.params, alone.params)
        distance = np.concatenate(jax.tree.leaves(distances))
        # a last layer of zeros passes on gradients that are only rounding, of which Adam makes whole steps
        assert distance.mean() < 1e-5 and distance.max() < (1e-3 if name in OFF_POLICY else 1e-5)
        assert_equal(jax.tree.map(lambda x, i=i: x[i], state.actor.env_state), alone.actor.env_state, atol=1e-4)
        assert_equal(metrics["episodes"][i], alone_metrics["episodes"])
    assert_equal(alone, trained(name, dataclasses.replace(args, num_seeds=1, seed=4), 3)[0])
    weights = [np.concatenate([np.ravel(leaf[i]) for leaf in jax.tree.leaves(state.params)]) for i in range(2)]
    assert not np.array_equal(*weights)


@pytest.mark.thorough
@pytest.mark.parametrize("name", PIXEL)
def test_seeds_together_equal_seeds_alone_from_pixels(name):
    args = arcade(name, num_seeds=2)
    state, _ = trained(name, args, 2)
    alone, _ = trained(name, dataclasses.replace(args, num_seeds=1, seed=1), 2)
    pairs = zip(*map(jax.tree.leaves, (state.params, alone.params)), strict=True)
    distance = np.concatenate([np.ravel(np.abs(x[1] - y)) for x, y in pairs])
    # Adam makes whole steps of a gradient that is but rounding: on one machine one weight of ppo_rnn's four million
    # was 2.5e-5 away, after having moved by up to 3e-3.
    assert (distance > 1e-5).mean() <= 1e-6 and distance.max() < 1e-4


@pytest.mark.parametrize("name", usually("pqn_mlp", "pqn_rnn", "impala_popart", of=ON_POLICY))
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


def equations(jaxpr):
    """All equations of a jaxpr and of the programs within."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from equations(inner)


@pytest.mark.parametrize("num_seeds", usually(2, of=(1, 2)))
@pytest.mark.parametrize("name", usually("pqn_mlp", "ppo_rnn", "impala_popart", of=ON_POLICY))
def test_final_observations_are_read_in_a_cond_also_with_seeds(name, num_seeds):
    args = (arcade if name in PIXEL else small)(name, num_seeds=num_seeds)
    init, update = script(name).make_train(args)
    state = jax.eval_shape(seed_by_seed(init, args), make_keys(args)[0])
    program = jax.make_jaxpr(over_seeds(repeat(update), args, (0, None)))(state, jnp.int32(1))
    with_network = [
        cond
        for cond in equations(program.jaxpr)
        if cond.primitive.name == "cond"
        and any(
            e.primitive.name == "dot_general" for branch in cond.params["branches"] for e in equations(branch.jaxpr)
        )
    ]
    assert len(with_network) == 1
    if name in PIXEL:  # its operands hold states, not frames
        assert not [variable for variable in with_network[0].invars if variable.aval.shape[-3:] == (128, 128, 3)]


@pytest.mark.parametrize("name", usually("pqn_mlp", "ppo_rnn", "ppo_continuous_action", of=FOR_ONE))
def test_truncation_bootstraps_from_the_final_observation(name):
    args = small(name, env_params=("max_steps_in_episode=3",))
    module = script(name)
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
    assert (jnp.abs(transition.final_value) > 0).all() and actor.episode.over.all()


def ids_for(name):
    """Every gymnax id whose actions the script takes, except the one that needs a download."""
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


def assert_can_be_trained_on(name, env_id):
    """Only traces an update, because compiling takes seconds each."""
    init, update = script(name).make_train(args_of_one_update(name, env_id))
    before = jax.eval_shape(init, jax.random.key(0))
    after, _ = jax.eval_shape(update, before)
    assert jax.tree.structure(before) == jax.tree.structure(after), env_id
    jax.tree.map(lambda x, y: (x.shape, x.dtype) == (y.shape, y.dtype) or pytest.fail(env_id), before, after)


@pytest.mark.parametrize("name", usually("ppo_continuous_action", of=(*PIXEL, "ppo_continuous_action")))
def test_every_gymnax_id_can_be_trained_on(name):
    found = list(ids_for(name))
    assert len(found) >= (20 if name in PIXEL else 5)
    for env_id in found:
        assert_can_be_trained_on(name, env_id)


KINDS = {True: ("Catch-bsuite", "Breakout-MinAtar", "FourRooms-misc"), False: ("Reacher-misc", "PointRobot-misc")}


SHAPES = [(name, env_id) for name in ALL if name != "ppo_selfplay" for env_id in KINDS[name in PIXEL]]
USUAL_SHAPES = [case for n, case in enumerate(SHAPES) if case[0] == "pqn_mlp" or n % 4 == 0]


@pytest.mark.parametrize(("name", "env_id"), usually(*USUAL_SHAPES, of=SHAPES))
def test_observations_of_each_shape_can_be_trained_on(name, env_id):
    assert_can_be_trained_on(name, env_id)


@pytest.mark.slow
@pytest.mark.parametrize("name", usually("pqn_mlp", of=PIXEL))
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
@pytest.mark.parametrize("name", usually("pqn_rnn", "impala_popart", of=PIXEL))
def test_no_convolution_is_left_in_a_cpu_program(name, encoder):
    init, update = script(name).make_train(arcade(name, encoder=encoder))
    text = jax.jit(update).lower(jax.eval_shape(init, jax.random.key(0))).as_text()
    assert "stablehlo.dot_general" in text and "stablehlo.convolution" not in text


# --------------------------------------------------------------------------------------------------------- learning

CATCH = {"env_id": "Catch-bsuite", "hidden_size": 64, "learning_rate": 1e-3}
CHAIN = {"env_id": "MemoryChain-bsuite", "env_params": ("memory_length=5",)}
CHAIN |= {"num_envs": 16, "learning_rate": 1e-3, "hidden_size": 32, "prev_action": False}
ROLLOUTS = {"num_envs": 16, "num_steps": 32, "num_minibatches": 4}
REPLAY = {"learning_starts": 1000, "buffer_size": 20_000, "train_frequency": 16, "batch_size": 64}
REPLAY |= {"target_network_frequency": 500}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "flags", "steps"),
    [("pqn_mlp", ROLLOUTS, 40_000), ("ppo_mlp", ROLLOUTS, 30_000), ("dqn_mlp", REPLAY, 25_000)],
)
def test_catch_is_learned(name, flags, steps):
    """Random play gets -0.6, and 1 is the most."""
    assert learned_return(name, script(name).Args(**CATCH, **flags, total_timesteps=steps)) > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(("name", "flags", "steps"), [("ppo_rnn", ROLLOUTS, 7_680), ("dqn_rnn", {}, 20_480)])
def test_one_bit_is_remembered_for_five_steps(name, flags, steps):
    """MemoryChain: return 1 with memory, 0 on average without. For PQN, with that control, see tests/test_pqn.py.

    Seeds 0 to 4 of ppo_rnn.py all needed two thirds of the steps or less, those of dqn_rnn.py more than half.
    """
    assert learned_return(name, script(name).Args(**(CHAIN | flags), total_timesteps=steps), seeds=1) > 0.95


# ------------------------------------------------------------------------------------------------------------ flags

PIXELS_ONLY = [("--encoder resnet", "patch, paper")]
PPO_ONLY = [
    ("--clip-coef 0", "--clip-coef"),
    ("--gae-lambda 1.5", "from 0 to 1"),
    ("--ent-coef -1", "--ent-coef"),
    ("--target-kl 0", "--target-kl"),
    ("--num-envs 2 --num-steps 1 --num-minibatches 2", "--no-norm-adv"),
]
ROLLOUTS_ONLY = [
    ("--num-minibatches 7", "use 4 or 8"),
    ("--num-envs 100000 --num-steps 100000 --num-minibatches 100000", "10000000000 steps"),
]
REPLAY_ONLY = [
    ("--storage videos", "states, frames"),
    ("--tau 2", "from 0 to 1"),
    ("--learning-starts 2000000", "or less"),
    ("--buffer-size 10", "--buffer-size 10"),
    ("--batch-size 0", "--batch-size 0: use 1 or more"),
]
REFUSALS = [(name, *case) for name in ON_POLICY for case in ROLLOUTS_ONLY]
REFUSALS += [(name, *case) for name in OFF_POLICY for case in REPLAY_ONLY]
REFUSALS += [(name, "--storage videos", "frames, states") for name in ("pqn_mlp", "pqn_rnn", "ppo_mlp", "ppo_rnn")]
REFUSALS += [("dqn_mlp", "--train-frequency 12", "use 8 or 16"), ("dqn_mlp", "--train-frequency 40", "use 32 or 64")]
REFUSALS += [
    ("dqn_rnn", "--burn-in 12", "use 8 or 16"),
    ("dqn_rnn", "--n-step 17", "use 16 (--num-steps) or less"),
    ("dqn_rnn", "--burn-in 1 --train-frequency 64", "does not divide NUM_ENVS * gcd(NUM_STEPS, BURN_IN) = 32: use 32"),
    ("dqn_rnn", "--burn-in 40", "use 32 or 48"),
    ("dqn_rnn", "--train-frequency 100", "use 64 or 128"),
    ("dqn_rnn", "--train-frequency 1000", "use 512"),
    ("dqn_rnn", "--total-timesteps 1000", "--total-timesteps 1000: use 1024 or more"),
    ("dqn_rnn", "--memory Elephant", "MinGRU"),
]
REFUSALS += [(name, *case) for name in PIXEL for case in PIXELS_ONLY]
REFUSALS += [(name, *case) for name in ("ppo_mlp", "ppo_rnn", "ppo_continuous_action") for case in PPO_ONLY]
REFUSALS += [(name, "--memory Elephant", "MinGRU") for name in ("pqn_rnn", "ppo_rnn", "impala_popart")]
REFUSALS += [
    ("ppo_selfplay", "--num-envs 2 --num-steps 1 --num-minibatches 4", "--no-norm-adv"),
    ("ppo_selfplay", "--opponents past --num-envs 4", "use a multiple of 8"),
]
REFUSALS += [("ppo_selfplay", "--env-id CartPoleEasy", "CartPoleEasy is not a two-player game")]
REFUSALS += [("ppo_mlp", "--env-id race:Race", "race:Race is a two-player game: use ppo_selfplay.py")]
REFUSALS += [("ppo_continuous_action", "--env-id CartPoleEasy", "use one with Box actions")]


@pytest.mark.parametrize(("name", "line", "words"), REFUSALS)
def test_a_script_refuses_its_own_bad_flags_in_one_line(name, line, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as error:
        parsed(*line.split(), script=script(name))
    assert words in str(error.value) and "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ALL)
def test_help_has_a_line_for_every_flag(name, capsys):
    with pytest.raises(SystemExit) as ended:
        parsed("--help", script=script(name))
    out = capsys.readouterr().out
    assert ended.value.code == 0
    for field in dataclasses.fields(script(name).Args):
        assert flag(field.name) in out
