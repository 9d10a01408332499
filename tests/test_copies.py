"""The training scripts carry copies of what they share: none may drift, and no flag may be without effect."""

import ast
import dataclasses
import functools
import re
from pathlib import Path

import pytest
from scripts import ALL, OFF_POLICY, ON_POLICY, PIXEL, script

ROOT = Path(__file__).parents[1]

# What makes one script another: its flags, its network, its algorithm. Else, what has the same name has the same text.
NETWORK = {
    *("Output", "QNetwork", "Tower", "ActorCritic", "make_network"),
    *("initial_carry", "forward", "blank_inputs", "init_params"),
}
ALGORITHM = {
    "POLICIES",
    "learning_rate_at",
    "Actor",
    "Transition",
    "TrainState",
    "make_actor",
    "make_train",
    "log_point",
}
OWN = {"Args", "PACKAGES", "run_name"} | NETWORK | ALGORITHM
# A replay buffer is not always in a checkpoint; the learner's metrics are summed
OWN_OF_REPLAY = {"MAY_DIFFER", "restore_checkpoint", "begin_run", "main", "Learner", "LESS", "memory_needed"}
# No pixels, no twins, no discrete actions there
OWN_OF_VECTORS = {"make_env", "main", "choose", "ppo_loss", "LESS", "memory_needed"}
# Several tasks there: ids instead of one, results of each, one of them filmed after the other
OWN_OF_TASKS = {
    *("is_arcade", "make_env", "Records", "draw_curve", "record_episode", "checkpoint_manager"),
    *("EVAL_COLUMNS", "LOSSES", "Learner"),
}
# Of these the two scripts of one algorithm, or the two with a memory, share the text.
SHARED_BY = {
    ("pqn_mlp", "pqn_rnn"): {"POLICIES", "learning_rate_at", "TrainState", "log_point", "Output"},
    ("ppo_mlp", "ppo_rnn"): {"POLICIES", "learning_rate_at", "TrainState", "log_point", "Output", "choose", "ppo_loss"},
    ("pqn_rnn", "ppo_rnn"): {"Actor", "run_name"},
    ("pqn_mlp", "ppo_mlp"): {"Actor", "run_name"},
    ("pqn_rnn", "dqn_rnn"): {
        "Actor",
        "run_name",
        "Output",
        "make_network",
        "forward",
        "blank_inputs",
        "init_params",
        "POLICIES",
    },
    ("pqn_mlp", "dqn_mlp"): {"Actor", "run_name", *NETWORK - {"Tower", "ActorCritic"}, "POLICIES"},
    ("ppo_rnn", "impala_popart"): {
        "POLICIES",
        "choose",
        "explained_variance",
        "learning_rate_at",
        "run_name",
        "Memory",
    },
    ("dqn_mlp", "dqn_rnn"): {
        *(
            "TrainState",
            "Learner",
            "log_point",
            "double_q_values",
            "importance_weights",
            "learning_rate_at",
            "beta_at",
            "target_share",
            "stores_states",
        ),
        *(
            "replay_bytes",
            "memory_needed",
            "without_replay",
            "begin_run",
            "restore_checkpoint",
            "MAY_DIFFER",
            "main",
        ),
    },
}
# And these functions within make_actor and make_train.
SHARED_WITHIN = {
    "train_chunk": ALL,
    "init": tuple(name for name in PIXEL if name in ON_POLICY and name != "impala_popart"),
    "init, with a buffer": OFF_POLICY,
    "begin": ("pqn_mlp", "ppo_mlp", "ppo_continuous_action", "dqn_mlp"),
    "begin, with a memory": ("pqn_rnn", "ppo_rnn", "dqn_rnn"),
}


def definitions(name):
    """Name -> text of everything a script defines at its top level."""
    return definitions_of((ROOT / f"{name}.py").read_text())


def segment(lines, node):
    """What ast.get_source_segment gives, which splits the whole text into lines for each node."""
    own = lines[node.lineno - 1 : node.end_lineno]
    own[-1] = own[-1][: node.end_col_offset]
    own[0] = own[0][node.col_offset :]
    return b"\n".join(own).decode()


@functools.cache
def definitions_of(text):
    found, lines = {}, text.encode().split(b"\n")
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = "\n".join(map(ast.unparse, node.decorator_list)) + segment(lines, node)
        elif isinstance(node, ast.Assign):
            found[ast.unparse(node.targets[0])] = segment(lines, node)
    return found


@pytest.mark.parametrize("name", ALL)
def test_copies_have_not_drifted(name):
    mine, reference = definitions(name), definitions("pqn_rnn")
    ppo = definitions("ppo_mlp")
    own = OWN | (OWN_OF_VECTORS if name == "ppo_continuous_action" else set())
    own |= OWN_OF_REPLAY if name in OFF_POLICY else set()
    own |= OWN_OF_TASKS if name == "impala_popart" else set()
    for other in (reference, ppo):
        drifted = [word for word in mine.keys() & other.keys() - own if mine[word] != other[word]]
        assert not drifted


@pytest.mark.parametrize("pair", SHARED_BY, ids="-".join)
def test_scripts_of_one_kind_share_more(pair):
    one, other = map(definitions, pair)
    assert not [word for word in SHARED_BY[pair] if one[word] != other[word]]


def functions_within(name):
    """Name -> text of the functions that make_actor and make_train define."""
    return functions_within_text((ROOT / f"{name}.py").read_text())


@functools.cache
def functions_within_text(text):
    lines = text.encode().split(b"\n")
    makers = [node for node in ast.parse(text).body if getattr(node, "name", "") in ("make_actor", "make_train")]
    inner = [node for maker in makers for node in ast.walk(maker) if isinstance(node, ast.FunctionDef)]
    return {node.name: segment(lines, node) for node in inner}


@pytest.mark.parametrize("name", OFF_POLICY)
def test_a_replay_buffer_changes_no_more_than_this(name):
    mine, reference = definitions(name), definitions("pqn_rnn")
    assert mine["main"].replace("without_replay(args, state)", "state") == reference["main"]
    assert mine["begin_run"].replace("    check_replay(args)\n", "") == reference["begin_run"]


def methods(name, kind):
    """Name -> text of the methods of a script's class."""
    text = (ROOT / f"{name}.py").read_text()
    lines = text.encode().split(b"\n")
    (found,) = (node for node in ast.parse(text).body if getattr(node, "name", "") == kind)
    return {node.name: segment(lines, node) for node in found.body if isinstance(node, ast.FunctionDef)}


def test_several_tasks_change_no_more_than_this():
    """Of what is compared elsewhere and differs in impala_popart.py, the parts that do not."""
    mine, reference = definitions("impala_popart"), definitions("ppo_rnn")
    assert mine["make_env"].replace("--env-ids", "--env-id") == reference["make_env"]
    assert mine["EVAL_COLUMNS"].replace(' "task",', "") == reference["EVAL_COLUMNS"]
    film = mine["record_task"].split('"""', 2)[2]
    assert film.strip() and reference["record_episode"].endswith(film[film.index("    _, begin") :])
    mine, reference = (methods(name, "Records") for name in ("impala_popart", "ppo_rnn"))
    assert {word for word in reference if mine[word] != reference[word]} == {"evaluation", "returns"}


@pytest.mark.parametrize("part", SHARED_WITHIN)
def test_inner_functions_have_not_drifted(part):
    texts = {functions_within(name)[part.partition(",")[0]] for name in SHARED_WITHIN[part]}
    assert len(texts) == 1


@pytest.mark.parametrize("name", ALL)
def test_parts_come_in_one_order(name):
    mine, reference = list(definitions(name)), list(definitions("pqn_rnn"))
    assert [word for word in mine if word in reference] == [word for word in reference if word in mine]
    headings = re.findall(r"^# -+ (.*)$", (ROOT / f"{name}.py").read_text(), re.MULTILINE)
    assert headings == ["arguments", "network", "devices", "algorithm", "run and checkpoints", "pictures", "main"]


@pytest.mark.parametrize("name", ALL)
def test_every_flag_is_read(name):
    source = (ROOT / f"{name}.py").read_text()
    for field in dataclasses.fields(script(name).Args):
        assert re.findall(rf"\b(?:args|self|saved)\.{field.name}\b", source), field.name


@pytest.mark.parametrize("name", ALL)
def test_nesting_stays_readable(name):
    """At most three levels of definitions, and of blocks in each."""

    def depth(node, kinds):
        inside = max((depth(child, kinds) for child in ast.iter_child_nodes(node)), default=0)
        return inside + isinstance(node, kinds)

    for node in ast.parse((ROOT / f"{name}.py").read_text()).body:
        assert depth(node, (ast.FunctionDef, ast.ClassDef)) <= 3, node.name


def test_a_drifted_copy_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    for name in ALL:
        text = (Path(__file__).parents[1] / f"{name}.py").read_text()
        if name == "ppo_rnn":
            text = text.replace("max_to_keep=3", "max_to_keep=2")
        (tmp_path / f"{name}.py").write_text(text)
    with pytest.raises(AssertionError, match="checkpoint_manager"):
        test_copies_have_not_drifted("ppo_rnn")
    test_copies_have_not_drifted("pqn_mlp")
