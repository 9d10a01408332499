"""Settings shared by all tests, and the order in which they run."""

import contextlib
import ctypes
import gc
import importlib.metadata
import io
import os
import subprocess
import sys

# Most tests compile a program to run it for a moment, and LLVM's optimisations take longer than they save. Set before
# JAX is imported, and where the scripts that tests start see it too. A test that runs for long is marked "optimized".
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
# The same holds for XLA's fusions built in MLIR and for programs cut into parts that compile side by side: without
# them compiling takes half as long. (A version that does not know a flag ends the process.)
if importlib.metadata.version("jaxlib") == "0.10.2":
    FLAGS = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ["XLA_FLAGS"] = f"{FLAGS} {os.environ.get('XLA_FLAGS', '')}".strip()

import harness  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_disable_most_optimizations", True)  # a plugin of pytest may have imported JAX

# Files whose programs test_keys.py checks, for all scripts and ids: checking them again in every run takes an eighth of
# the time. Where keys go from one program to another, a test of these files asks for `checks_keys`.
KEYS_ARE_CHECKED = (
    "test_contract test_pqn test_ppo test_ppo_continuous_action test_dqn test_impala_popart test_normalization "
    "test_devices test_memory test_memory_formulas test_memory_use test_memax_fixes test_encoding test_keys "
    "test_command_lines test_resume test_run_folder test_run_scripts test_survival test_tracking test_reproducibility "
    "test_storage test_evaluate test_analysis test_saliency test_contamination test_recall_density test_last_frames "
    "test_filter_comparison test_shipped_agents "
    "test_worlds"  # because other libraries use keys twice
).split()

# Medium runs the code of Easy and Hard at a size between theirs: its tests run with --thorough.
MEDIUM_IDS = [env_id for env_id in harness.IDS if env_id.endswith("Medium")]


def pytest_addoption(parser):
    parser.addoption(
        "--update-references",
        action="store_true",
        help="write the pictures in tests/reference/ instead of comparing with them (then look at every one)",
    )
    parser.addoption("--thorough", action="store_true", help="also run tests marked so, see pyproject.toml")


@pytest.fixture(autouse=True)
def optimizations(request, monkeypatch):
    """Lets LLVM optimise what a test that is marked so compiles, here and in the scripts that it starts."""
    if request.node.get_closest_marker("optimized") is None:
        yield
        return
    monkeypatch.delenv("JAX_DISABLE_MOST_OPTIMIZATIONS")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(autouse=True)
def key_reuse(request):
    """Lets a key that is used twice raise: it gives correlated "randomness" that no other test notices."""
    checked = group_of(request.node) in harness.IDS or request.path.stem in KEYS_ARE_CHECKED
    jax.config.update("jax_debug_key_reuse", not checked)


@pytest.fixture
def checks_keys(key_reuse):
    """Lets a key that is used twice raise in a file of KEYS_ARE_CHECKED, too."""
    jax.config.update("jax_debug_key_reuse", True)


@pytest.fixture
def asked_here(monkeypatch):
    """tune.py asks about scripts in this process, which has imported JAX already. Other processes are as they were."""
    import tune  # here, because Optuna takes long to import

    start = subprocess.run

    def run(line, **options):
        if line[:3] != [sys.executable, "-c", tune.ASK]:
            return start(line, **options)
        # tyro draws its box in Unicode
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
        code = 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), monkeypatch.context() as patch:
            patch.setattr(sys, "argv", line[2:])
            patch.setattr(sys, "path", [*sys.path])
            try:
                exec(tune.ASK, {})
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else 1
                err.write("" if isinstance(end.code, int) else f"{end.code}\n")
        return subprocess.CompletedProcess(line, code, *(file.buffer.getvalue().decode() for file in (out, err)))

    monkeypatch.setattr(tune.subprocess, "run", run)


def pytest_collection_finish():
    """Tracing makes many objects that live for long; looking through all of them time and again took a fourth of it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)  # pytest_runtest_teardown below collects between the groups


@pytest.fixture
def update_references(request):
    return request.config.getoption("--update-references")


# All tests of one id run one after another in one process, so that what they share is compiled and played once, and
# is forgotten after them. A process that kept the programs of all ids would pass the kernel's limit of memory maps
# (vm.max_map_count, 65530 by default) and crash.


def group_of(item) -> str:
    """The id that a test of the environments is about; else its file and, of tests for all scripts, the script."""
    values = item.callspec.params if hasattr(item, "callspec") else {}
    if item.path.stem == "test_contract":
        return f"test_contract {values.get('run', values.get('name'))}"
    is_about_an_id = values.get("env_id") in harness.IDS and not item.path.stem.startswith("test_pqn")
    return values["env_id"] if is_about_an_id else item.path.stem


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(config, items):
    for item in items:
        if group_of(item) in MEDIUM_IDS:
            item.add_marker(pytest.mark.thorough)
    if not config.getoption("--thorough"):
        thorough = [item for item in items if item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=thorough)
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]
    # Files before ids: the scripts' tests take longest, and should not be what one process is left with at the end.
    items.sort(key=lambda item: (group_of(item) in harness.IDS, group_of(item)))
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group_of(item)))


def pytest_runtest_teardown(item, nextitem):
    if nextitem is None or group_of(nextitem) != group_of(item):
        harness.forget()
        jax.clear_caches()
        gc.collect()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # else glibc keeps gigabytes of what is freed
        if trim:
            trim(0)
