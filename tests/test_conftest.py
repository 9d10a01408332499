"""What tests/conftest.py arranges has to arrive: a pytest that loses the groups only makes everything slower."""

import subprocess
import sys

import jax
import pytest


def test_tests_of_one_group_go_to_one_process(request):
    if not getattr(request.config.option, "loadgroup", False):  # set in the processes of --dist loadgroup
        pytest.skip("not run with --dist loadgroup, as `make test` does")
    assert request.node.nodeid.endswith("@test_conftest")  # the mark that pytest-xdist's scheduler goes by


def environment_of_a_script():
    line = [sys.executable, "-c", "import os; print(os.environ.get('JAX_DISABLE_MOST_OPTIMIZATIONS'))"]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()


def test_what_a_test_compiles_is_not_optimized():
    assert jax.config.values["jax_disable_most_optimizations"] and environment_of_a_script() == "1"


@pytest.mark.optimized
def test_but_where_the_test_is_marked_so():
    assert not jax.config.values["jax_disable_most_optimizations"] and environment_of_a_script() == "None"
