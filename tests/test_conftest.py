"""What tests/conftest.py arranges has to arrive: a pytest that loses the groups only makes everything slower."""

import pytest


def test_tests_of_one_group_go_to_one_process(request):
    if not getattr(request.config.option, "loadgroup", False):  # set in the processes of --dist loadgroup
        pytest.skip("not run with --dist loadgroup, as `make test` does")
    assert request.node.nodeid.endswith("@test_conftest")  # the mark that pytest-xdist's scheduler goes by
