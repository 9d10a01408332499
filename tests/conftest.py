"""Settings shared by all tests, and the order in which they run."""

import ctypes
import gc

import harness
import jax
import pytest

# A key that is used twice gives correlated "randomness" that no other test notices; with this flag it raises.
jax.config.update("jax_debug_key_reuse", True)


def pytest_addoption(parser):
    parser.addoption(
        "--update-references",
        action="store_true",
        help="write the pictures in tests/reference/ instead of comparing with them (then look at every one)",
    )


@pytest.fixture
def update_references(request):
    return request.config.getoption("--update-references")


# All tests of one id run one after another in one process, so that what they share is compiled and played once, and
# is forgotten after them. A process that kept the programs of all ids would pass the kernel's limit of memory maps
# (vm.max_map_count, 65530 by default) and crash.


def group_of(item) -> str:
    """The id that the test is about, or else its file; tests of the scripts stay with their file."""
    env_id = item.callspec.params.get("env_id") if hasattr(item, "callspec") else None
    of_a_script = item.path.stem.startswith("test_pqn")
    return env_id if env_id in harness.IDS and not of_a_script else item.path.stem


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items):
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
