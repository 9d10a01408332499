"""The code of the pages runs, and does what they say."""

import re
from pathlib import Path

import gymnax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import IDS

import popgym_arcade
import pqn_rnn
from popgym_arcade import registration

ROOT = Path(__file__).parent.parent


def python_blocks(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def own_twin():
    """What the page defines; its id is forgotten afterwards, since other tests go through all ids."""
    names = {}
    for block in python_blocks("docs/make-your-own-twin.md"):
        exec(compile(block, "docs/make-your-own-twin.md", "exec"), names)
    yield names
    del registration._CONSTRUCTORS["Lamps"], gymnax.registration._registry["Lamps"]
    gymnax.registration.registered_envs.remove("Lamps")
    popgym_arcade.REGISTERED_ENVIRONMENTS.remove("Lamps")


def play(env, params, state, actions):
    rewards, ends = [], []
    for action in actions:
        _, state, reward, terminated, truncated, _ = env.step(jax.random.key(0), state, action, params)
        rewards.append(float(reward))
        ends.append((bool(terminated), bool(truncated)))
    return rewards, ends


@pytest.mark.parametrize("lamp", [0, 1])
def test_the_game_of_the_page_pays_for_the_right_side(own_twin, lamp):
    env, params = gymnax.make("Lamps", partial_obs=True)
    _, state = env.reset(jax.random.key(0), params)
    state = state.replace(lamp=jnp.int32(lamp))
    for side, pay in ((2, 1.0 - lamp), (3, float(lamp))):
        rewards, ends = play(env, params, state, [4] * 7 + [side])
        assert rewards == [0.0] * 7 + [pay] and ends == [(False, False)] * 7 + [(True, False)]


@pytest.mark.parametrize("obs_size", [128, 256])
@pytest.mark.parametrize("partial_obs", [False, True])
def test_both_games_of_the_page_draw_the_same(own_twin, obs_size, partial_obs):
    slow, fast = (own_twin[name](partial_obs, obs_size) for name in ("Lamps", "FastLamps"))
    pictures = set()
    for time in range(8):
        for lamp in (0, 1):
            state = own_twin["LampsState"](time=jnp.int32(time), lamp=jnp.int32(lamp))
            one, other = np.asarray(slow.get_obs(state)), np.asarray(fast.get_obs(state))
            np.testing.assert_array_equal(one, other)
            pictures.add(one.tobytes())
    assert len(pictures) == (9 if partial_obs else 16)  # the partial twin shows the lamp at time 0 alone


@pytest.mark.optimized
@pytest.mark.slow
def test_a_script_learns_the_game_of_the_page(own_twin, tmp_path):
    line = "--env-id Lamps --partial-obs --hidden-size 32 --num-steps 16 --learning-rate 1e-3 --total-timesteps 60000"
    line += " --log-every 5000 --eval-every 5000 --target-return 0.95"  # three of three seeds were there after 20,000
    folder = pqn_rnn.main(pqn_rnn.parse_args([*line.split(), "--run-dir", str(tmp_path)]))
    assert "__pomdp__" in folder.name
    steps, means = pqn_rnn.Records(folder, pqn_rnn.read_args(folder), 10**9).returns("greedy")
    assert means[-1, 0] > 0.9, means


def test_a_taken_id_and_what_is_no_game_are_refused(own_twin):
    with pytest.raises(ValueError, match="taken"):
        popgym_arcade.register("NavigatorEasy", own_twin["Lamps"])
    with pytest.raises(ValueError, match="subclass of ArcadeEnvironment"):
        popgym_arcade.register("Nothing", object)


@pytest.mark.parametrize("page", ["README.md", "docs/saliency.md"])
def test_the_examples_of_a_page_run(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert python_blocks(page)
    for block in python_blocks(page):
        exec(compile(block, page, "exec"), {})


@pytest.mark.parametrize("page", ["README.md", *sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/*.md"))])
def test_links_to_files_of_the_repository_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text())
    missing = [link for link in links if "://" not in link and not ((ROOT / page).parent / link).exists()]
    assert not missing


def test_the_page_of_the_games_has_every_family():
    page = (ROOT / "docs/environments.md").read_text()
    sections = set(re.findall(r"^## (\w+)$", page, re.MULTILINE))
    families = {env_id.removesuffix("Easy") for env_id in popgym_arcade.REGISTERED_ENVIRONMENTS if "Easy" in env_id}
    assert families <= sections
    for name in families:
        assert f"![{name}](figures/games/{name}.png)" in page


def test_the_limits_on_the_page_are_those_of_the_games():
    page = (ROOT / "docs/environments.md").read_text()
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        name = section.split("\n")[0]
        if f"{name}Easy" not in popgym_arcade.REGISTERED_ENVIRONMENTS:
            continue
        (line,) = re.findall(r"^\| time limit[^|]*\|(.*)\|$", section, re.MULTILINE)
        limits = [gymnax.make(name + level)[1].max_steps_in_episode for level in ("Easy", "Medium", "Hard")]
        assert [int(cell) for cell in line.split("|")] == limits, name


def test_the_random_returns_on_the_page_are_the_measured_ones():
    table = (ROOT / "benchmark/results/random_policy.md").read_text()
    assert table in (ROOT / "docs/environments.md").read_text()
    for env_id in IDS:
        assert f"| {env_id} | " in table
