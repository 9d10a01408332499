"""gymnax imports libraries for plots that hardly anyone uses: popgym_arcade puts off loading them."""

import subprocess
import sys

from popgym_arcade.stand_ins import StandIn, stand_ins

SCRIPT = """
import sys
import matplotlib
import popgym_arcade
loaded = {"seaborn", "matplotlib.pyplot", "pandas"} & set(sys.modules)
assert not loaded, loaded

import gymnax, jax
matplotlib.use("Agg")
for env_id in ("Catch-bsuite", "Pong-misc"):  # they draw all the same
    env, env_params = gymnax.make(env_id)
    _, env_state = env.reset(jax.random.key(0), env_params)
    env.render(env_state, env_params)

import matplotlib.pyplot as plt, seaborn
assert type(plt).__name__ == type(seaborn).__name__ == "module"
assert len(plt.get_fignums()) == 2
"""


def test_importing_the_games_does_not_load_the_libraries_with_which_gymnax_plots():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_a_stand_in_is_seen_only_in_its_context_and_forwards_what_it_is_asked_for(monkeypatch):
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with stand_ins("colorsys", "json"):
        import colorsys
        import json

        assert isinstance(colorsys, StandIn) and not isinstance(json, StandIn)  # json is loaded already
    assert "colorsys" not in sys.modules
    assert colorsys.rgb_to_hsv(0, 0, 1) == (2 / 3, 1, 1)
    assert sys.modules["colorsys"].rgb_to_hsv is colorsys.rgb_to_hsv
