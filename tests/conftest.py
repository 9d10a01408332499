"""Settings shared by all tests."""

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
