"""saliency.py: gradients against differences and unrolled loops, perturbations against a loop, pictures, the page."""

import dataclasses
import functools
import shutil
import time
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from chromium import open_browser
from PIL import Image
from scipy import ndimage
from scripts import usually
from untrained_agents import agent_in, bold, untrained

import contamination
import filter_comparison
import saliency
from popgym_arcade.analysis.networks import relative_scores
from popgym_arcade.analysis.recall import recall_density
from popgym_arcade.analysis.trajectories import observations, record
from popgym_arcade.analysis.twins import in_twins
from popgym_arcade.baselines.errors import UserError
from saliency import Args

PIXELS = {"env_id": "SkittlesEasy", "partial_obs": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@functools.lru_cache
def pixel_agent(folder, name="pqn_rnn", memory="MinGRU"):
    changes = PIXELS | ({"memory": memory} if name.endswith("rnn") else {})
    return agent_in(untrained(name, folder, **changes))


def trajectory_of(agent, steps, seed=0):
    (trajectory,) = record(agent, jax.random.key(seed), 1, steps)
    return trajectory


def test_squared_gradients_equal_differences():
    """In float64, of a small network that remembers."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        read, remember, decide = (jnp.asarray(rng.normal(size=shape)) for shape in ((3, 4), (4, 4), (4, 2)))

        def values(obs):
            def step(hidden, x):
                hidden = jnp.tanh(x @ read + hidden @ remember)
                return hidden, jnp.sin(hidden @ decide)

            return jax.lax.scan(step, jnp.zeros(4), obs)[1]

        obs, n, small = jnp.asarray(rng.normal(size=(5, 3))), 3, 1e-6
        found = saliency.squared_gradients(values, obs, n)
        assert found.dtype == jnp.float64
        for t, i in np.ndindex(5, 3):
            up, down = (values(obs.at[t, i].add(sign * small))[n] for sign in (1, -1))
            assert float(found[t, i]) == pytest.approx(float((((up - down) / (2 * small)) ** 2).sum()), rel=1e-5)
        assert not np.any(found[n + 1 :])


@pytest.mark.parametrize(
    ("name", "memory"), usually(("pqn_rnn", "MinGRU"), of=[("pqn_rnn", "MinGRU"), ("ppo_rnn", "GRU")])
)
def test_gradient_saliency_equals_an_unrolled_loop(folder, name, memory):
    agent = pixel_agent(folder, name, memory)
    trajectory = trajectory_of(agent, 3)
    found = saliency.gradient_saliency(agent, trajectory)
    network = agent.script.make_actor(agent.args)[0]
    frames = jnp.asarray(found.obs, jnp.float32) / 255

    @functools.partial(jax.jit, static_argnums=1)
    @jax.grad
    def gradient(frames, n, action):
        carry = agent.script.initial_carry(network, 1)
        for t in range(n + 1):
            now = 255 * frames[t][None, None], jnp.int32(trajectory.prev_action[t])[None, None]
            start = jnp.bool_(trajectory.start[t])[None, None]
            carry, output = agent.script.forward(network, agent.params, carry, *now, start)
        y = output.q if hasattr(output, "q") else jnp.exp(output.logits) / jnp.exp(output.logits).sum()
        return y[0, 0, action]

    for n in (0, 2):
        gradients = [gradient(frames, n, action) for action in range(5)]
        want = sum(np.square(x).sum(axis=-1) for x in gradients)
        assert want[: n + 1].max() > 0 and not want[n + 1 :].any()
        np.testing.assert_allclose(found.maps[n], want, rtol=2e-3, atol=1e-4 * want.max())
        assert not found.maps[n, n + 1 :].any()
    np.testing.assert_allclose(found.shares.sum(axis=1), 1)


@pytest.mark.parametrize("memory", usually("Attention", of=("MinGRU", "GRU", "LRU", "Attention")))
def test_nothing_before_the_start_of_an_episode_matters(folder, memory):
    agent = agent_in(untrained("pqn_rnn", folder, memory=memory))
    trajectory = trajectory_of(agent, 6)
    broken = dataclasses.replace(trajectory, start=np.arange(6) % 3 == 0)
    maps = saliency.gradient_saliency(agent, broken).maps
    assert not maps[3:, :3].any()
    assert maps[5, 3:].any(axis=1).all() and maps[2, :3].any(axis=1).all()


@pytest.mark.parametrize(
    ("name", "memory"), usually(("pqn_rnn", "MLP"), of=[("pqn_mlp", ""), ("ppo_mlp", ""), ("pqn_rnn", "MLP")])
)
def test_the_past_does_not_matter_to_an_agent_without_memory(folder, name, memory):
    agent = pixel_agent(folder, name, memory)
    maps = saliency.gradient_saliency(agent, trajectory_of(agent, 3)).maps
    for n, t in np.ndindex(3, 3):
        assert maps[n, t].any() == (n == t)


def test_continuous_actions_and_their_mean(folder):
    agent = agent_in(untrained("ppo_continuous_action", folder))
    found = saliency.gradient_saliency(agent, trajectory_of(agent, 5))
    assert found.maps.shape == (5, 5, 3) and found.values.shape == (5, 1)
    assert (np.diagonal(found.maps.any(axis=2)) == 1).all() and found.maps.any(axis=2).sum() == 5


@pytest.mark.parametrize("name", ["pqn_rnn", "ppo_mlp"])
def test_the_values_explained_are_those_the_agent_acted_on(folder, name):
    """The greedy action of every step has the largest."""
    agent = pixel_agent(folder, name)
    trajectory = trajectory_of(agent, 3)
    values = saliency.gradient_saliency(agent, trajectory).values
    np.testing.assert_array_equal(values.argmax(axis=1), trajectory.action)


@pytest.mark.parametrize(
    ("name", "lag"), usually(("pqn_rnn", 0), ("pqn_rnn", 2), of=[("pqn_rnn", 0), ("pqn_rnn", 2), ("ppo_rnn", 1)])
)
def test_perturbation_saliency_equals_a_loop(folder, name, lag):
    agent = pixel_agent(folder, name)
    agent = bold(agent) if name == "ppo_rnn" else agent
    trajectory = trajectory_of(agent, 4)
    found = saliency.perturbation_saliency(agent, trajectory, at=3, lag=lag, stride=50)
    frames = observations(agent, trajectory).astype(np.float32)
    blurred = np.stack([ndimage.gaussian_filter(frames[3 - lag, :, :, c], 3 * 128 / 80) for c in range(3)], axis=-1)
    network = agent.script.make_actor(agent.args)[0]

    def decide(frames):
        carry = agent.script.initial_carry(network, 1)
        _, output = agent.script.forward(
            network, agent.params, carry, frames[:, None], trajectory.prev_action[:, None], trajectory.start[:, None]
        )
        scores = (output.q if hasattr(output, "q") else output.logits)[-1, 0]
        return scores - scores.mean(), output.value[-1, 0] if hasattr(output, "value") else scores.max()

    decide = jax.jit(decide)
    policy, value = decide(frames)
    centres = [13, 63, 113]
    assert found.policy.shape == found.value.shape == (3, 3)
    y, x = np.mgrid[:128, :128]
    for i, j in np.ndindex(3, 3):
        mask = np.exp(-((y - centres[i]) ** 2 + (x - centres[j]) ** 2) / (2 * 8.0**2))[..., None].astype(np.float32)
        changed = frames.copy()
        changed[3 - lag] = frames[3 - lag] * (1 - mask) + blurred * mask
        new_policy, new_value = decide(changed)
        moved = {"policy": np.linalg.norm(new_policy - policy), "value": abs(float(new_value - value))}
        assert found.flips[i, j] == (new_policy.argmax() != policy.argmax())
        for kind, output in (("policy", policy), ("value", value)):
            size = np.abs(output).max()  # float32 leaves this much of it open
            found_moved = np.sqrt(2 * getattr(found, kind)[i, j])
            assert found_moved == pytest.approx(moved[kind], rel=0.01, abs=1e-5 * size)
    assert np.sqrt(found.policy.max()) > 1e-4 * np.abs(policy).max()


def test_a_change_that_all_actions_share_is_no_change_of_a_decision():
    q = jnp.array([[1.0, 3.0, 2.0]])
    for output in (types.SimpleNamespace(q=q), types.SimpleNamespace(logits=q)):
        np.testing.assert_allclose(relative_scores(output), [[-1, 1, 0]])
    np.testing.assert_array_equal(relative_scores(types.SimpleNamespace(mean=q)), q)


def test_shares_of_the_gradient_are_the_recall_density(folder):
    agent = pixel_agent(folder)
    trajectory = trajectory_of(agent, 4)
    shares = saliency.gradient_saliency(agent, trajectory).shares[-1]
    np.testing.assert_allclose(shares, recall_density(agent, trajectory), rtol=1e-3)
    assert shares[:-1].max() > 0.001


def test_perturbing_a_past_frame_does_not_matter_without_memory(folder):
    agent = pixel_agent(folder, "pqn_mlp", "")
    trajectory = trajectory_of(agent, 4)
    now, before = (saliency.perturbation_saliency(agent, trajectory, lag=lag, stride=40) for lag in (0, 1))
    assert now.policy.any() and not before.policy.any() and not before.value.any()


def test_gradients_are_shown_next_to_the_same_decision_and_frame(folder):
    agent = pixel_agent(folder)
    trajectory = trajectory_of(agent, 4)
    found = [saliency.perturbation_saliency(agent, trajectory, at=3, lag=lag, stride=40) for lag in (0, 1)]
    gradient = saliency.gradient_saliency(agent, trajectory)
    without, with_gradients = (saliency.draw_perturbation(found, *more) for more in ((), ([gradient],)))
    assert len(without.axes) == 2 * 4 + 2 and len(with_gradients.axes) == 2 * 5 + 3  # panels and scales
    for axes, t in zip(with_gradients.axes[4:10:5], (3, 2), strict=True):
        np.testing.assert_array_equal(axes.images[0].get_array(), gradient.maps[3, t])
        assert axes.get_title() == f"gradient, {gradient.shares[3, t]:.1%} of the total"


def test_places_cover_the_frame_evenly():
    for height, width, stride in ((128, 128, 5), (256, 256, 5), (128, 128, 50), (7, 7, 3), (40, 64, 7)):
        found = saliency.places(height, width, stride)
        rows, columns = found[:, 0, 0], found[0, :, 1]
        assert (found[..., 0] == rows[:, None]).all() and (found[..., 1] == columns).all()
        for side, line in ((height, rows), (width, columns)):
            assert (np.diff(line) == stride).all() and 0 <= line[0] < stride
            assert abs(line[0] - (side - 1 - line[-1])) <= 1


def test_grey_frames_that_are_wider_than_high(tmp_path):
    """Every analysis script draws the latest of the stacked frames."""
    run = untrained("pqn_rnn", tmp_path, env_id="grey_frames:GreyFrames", partial_obs=False, num_seeds=2)
    out = saliency.main(Args(runs=(str(run),), out=str(tmp_path / "saliency"), kind=("gradient", "perturbation"), at=3))
    found = np.load(next(out.glob("*perturbation_3_0.npz")))
    assert found["frame"].shape == (40, 64, 4) and found["policy"].shape == (8, 13)
    agent = agent_in(run)
    now, before = (saliency.perturbation_saliency(agent, trajectory_of(agent, 4), lag=lag) for lag in (0, 1))
    picture = saliency.draw_perturbation([now, before]).axes[0].images[0].get_array()
    np.testing.assert_array_equal(picture, now.frame[..., -1:].repeat(3, axis=-1))
    args = contamination.Args(runs=(str(run),), out=str(tmp_path / "bad"), episodes=2, at=2, first=2, steps=2)
    assert len(list(contamination.main(args).glob(f"{run.name}__single__*.png"))) == 2
    args = filter_comparison.Args(runs=(str(run),), out=str(tmp_path / "filters"))
    assert (filter_comparison.main(args) / "filters.png").exists()
    first, second = filter_comparison.filters_of(agent).values()
    assert first.shape == (16, 4, 4, 4) and second.shape == (32, 2, 2, 16)


def test_a_bright_pixel_of_a_later_frame_does_not_darken_the_page(folder):
    """Each decision has a scale of its own, from the frames until then."""
    agent = pixel_agent(folder)
    trajectory = trajectory_of(agent, 3)
    found = saliency.gradient_saliency(agent, trajectory)
    maps = np.zeros_like(found.maps)
    maps[0, 0, 0, :10] = maps[2] = 4.0  # ten pixels: more than one in 2,000 of one frame, but not of three
    page = saliency.page_data(dataclasses.replace(found, maps=maps))
    assert page["roots"][0] == page["roots"][2] == 2.0


def test_the_script_writes_pictures_and_numbers_of_both_twins(folder, tmp_path, capsys):
    run = pixel_agent(folder).folder
    kinds = "gradient", "perturbation"
    args = Args(runs=(str(run),), out=str(tmp_path / "out"), kind=kinds, twin="both", steps=6, stride=40, lag=(0, 2))
    out = saliency.main(args)
    name = run.name
    pictures = [f"{name}__{part}" for part in ("grid.png", "line.png", "video.gif", "perturbation.png")]
    arrays = [f"{name}__{twin}__gradient.npz" for twin in ("mdp", "pomdp")]
    arrays += [f"{name}__{twin}__perturbation_5_{lag}.npz" for twin in ("mdp", "pomdp") for lag in (0, 2)]
    assert {path.name for path in out.iterdir()} == {*pictures, *arrays, f"{name}.html"}
    assert Image.open(out / pictures[2]).n_frames == 6
    with np.load(out / arrays[0]) as saved:
        assert saved["maps"].shape == (6, 6, 128, 128) and saved["values"].shape == (6, 5)
        np.testing.assert_allclose(saved["shares"].sum(axis=1), 1)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines if line.startswith(name)] == ["mdp", "pomdp"] and str(out) in lines[-1]
    with pytest.raises(UserError, match="File exists"):
        saliency.main(args)


@pytest.mark.parametrize("env_id", usually("Breakout-MinAtar", of=("CartPole-v1", "Breakout-MinAtar")))
def test_observations_that_are_not_frames(env_id, folder, tmp_path):
    run = untrained("pqn_rnn", folder, env_id=env_id)
    out = saliency.main(Args(runs=(str(run),), out=str(tmp_path / "out"), steps=5))
    assert (out / f"{run.name}.html").exists() and (out / f"{run.name}__single__gradient.npz").exists()
    with pytest.raises(UserError, match="blurs frames"):
        saliency.main(Args(runs=(str(run),), out=str(tmp_path / "no"), steps=5, kind=("perturbation",)))
    assert not (tmp_path / "no").exists()


def test_one_seed_of_several(folder, tmp_path):
    run = untrained("pqn_mlp", folder, num_seeds=2)
    found = []
    for i in range(2):
        out = saliency.main(Args(runs=(str(run),), out=str(tmp_path / str(i)), steps=3, seed_index=i))
        with np.load(out / f"{run.name}__single__gradient.npz") as saved:
            found.append(saved["values"])
    assert np.abs(found[0] - found[1]).max() > 1e-3
    with pytest.raises(UserError, match="--seed-index 2"):
        saliency.main(Args(runs=(str(run),), out=str(tmp_path / "no"), steps=3, seed_index=2))


def test_pictures_show_step_n_in_rows_and_frame_t_in_columns(folder):
    found = saliency.gradient_saliency(pixel_agent(folder), trajectory_of(pixel_agent(folder), 4))
    for last_only, rows in ((False, range(4)), (True, [3])):
        figure = saliency.draw_maps([found], 4, last_only)
        shown = [axes for axes in figure.axes if axes.images]
        frames, maps = shown[:4], shown[4:]
        for t, axes in enumerate(frames):
            np.testing.assert_array_equal(axes.images[0].get_array(), found.obs[t])
        places = [(n, t) for n in rows for t in range(n + 1)]
        assert len(maps) == len(places)
        for axes, (n, t) in zip(maps, places, strict=True):
            np.testing.assert_array_equal(axes.images[0].get_array(), found.maps[n, t])
            assert axes.get_title() == f"{found.shares[n, t]:.1%}"
    image = np.asarray(saliency.draw_video([found], 4)[2])
    for column, t in enumerate(range(3), 1):
        norm = saliency.colour_scale([found.maps[2, :3]])
        want = saliency.laid_over(found.obs[t], np.asarray(norm(found.maps[2, t])))
        np.testing.assert_array_equal(image[22:150, column * 134 : column * 134 + 128], want)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["pqn_mlp"])
def test_frames_of_256_pixels(folder, tmp_path, name):
    run = untrained(name, folder, obs_size=256, **PIXELS)
    args = Args(runs=(str(run),), out=str(tmp_path / "out"), steps=2, kind=("gradient", "perturbation"), stride=100)
    with np.load(saliency.main(args) / f"{run.name}__pomdp__gradient.npz") as saved:
        assert saved["maps"].shape == (2, 2, 256, 256) and saved["maps"][1, 1].any()


def test_runs_with_the_same_name_do_not_overwrite_each_other(folder, tmp_path):
    run = untrained("pqn_mlp", folder)
    for place in ("a", "b"):
        shutil.copytree(run, tmp_path / place / "same")
    out = saliency.main(Args(runs=(str(tmp_path / "?" / "same"),), out=str(tmp_path / "out"), steps=2))
    assert {"same.html", "same-2.html"} <= {path.name for path in out.iterdir()}


def test_steps_the_episode_does_not_have_are_refused(folder, tmp_path):
    run, out = pixel_agent(folder).folder, str(tmp_path / "out")
    args = {"runs": (str(run),), "out": out, "kind": ("perturbation",), "steps": 120}
    for changes, words in (({"at": 119}, "--at 119: the episode"), ({"lag": (0, 110)}, "--lag 110: the episode")):
        with pytest.raises(UserError, match=words):
            saliency.main(Args(**args, **changes))
    with pytest.raises(UserError, match="--steps 1000: the maps would take 66 GB per twin, use 247 or less"):
        saliency.main(Args(runs=(str(run),), out=out, steps=1000))
    assert not (tmp_path / "out").exists()


def test_observations_of_any_shape_become_pictures():
    rng = np.random.default_rng(0)
    for shape, size in (((), (1, 1)), ((1,), (1, 1)), ((5,), (2, 3)), ((9, 7), (9, 7)), ((10, 10, 4), (10, 10))):
        obs = rng.normal(size=(6, *shape)).astype(np.float32)
        pictures = saliency.pictures_of(obs)
        assert pictures.shape == (6, *size, 3) and pictures.dtype == np.uint8 and np.ptp(pictures) > 0
    still = np.zeros((6, 10, 10, 4))
    still[:, 3, 4, 2] = 1  # what never moves is visible too
    assert saliency.pictures_of(still)[:, 3, 4].any() and not saliency.pictures_of(still)[:, 0, 0].any()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": 0}, "--steps 0"),
        ({"lag": (41,)}, "--lag 41"),
        ({"at": 40}, "--at 40"),
        ({"kind": ()}, "--kind"),
        ({"lag": (1, 1)}, "--lag 1 1: name each once"),
        ({"mask_sigma": -1.0}, "--mask-sigma -1.0"),
    ],
)
def test_wrong_arguments_are_refused(changes, words):
    with pytest.raises(UserError, match=words):
        Args(**changes).checked()


@pytest.fixture
def browser():
    with open_browser() as driver:
        yield driver


def shown(driver, n):
    """Waits until the page shows step n."""
    end = time.monotonic() + 60
    while driver.execute_script("return document.body.dataset.shown") != str(n):
        assert time.monotonic() < end, "the page does not show the step"
        time.sleep(0.05)


COLOURED = """
const canvas = document.querySelectorAll("section")[arguments[0]].querySelectorAll("canvas.large")[1];
const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
let sum = 0;
for (let i = 0; i < data.length; i += 4) sum += Math.abs(data[i] - data[i + 2]);
return sum;
"""


def test_the_page_moves_in_a_browser(folder, tmp_path, browser):
    """The numbers on the page are those of the maps."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    twins = in_twins(pixel_agent(folder), "both")
    found = [saliency.gradient_saliency(agent, trajectory_of(agent, 6)) for agent in twins]
    page = tmp_path / "page.html"
    saliency.write_page(page, found)
    browser.get(page.as_uri())
    shown(browser, 5)
    sections = browser.find_elements(By.TAG_NAME, "section")
    assert [section.get_attribute("data-twin") for section in sections] == ["mdp", "pomdp"]
    slider = browser.find_element(By.ID, "n")
    slider.send_keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    shown(browser, 3)
    for section, each in zip(sections, found, strict=True):
        cells = [cell for cell in section.find_elements(By.CLASS_NAME, "cell") if cell.is_displayed()]
        assert [cell.text for cell in cells] == [f"{t}: {100 * each.shares[3, t]:.1f} %" for t in range(4)]
        bars = section.find_elements(By.CLASS_NAME, "bar")
        values = [f"{value:.3f}".replace("-0.000", "0.000") for value in each.values[3]]
        told = [bar.text.split("\n")[-1].replace("-0.000", "0.000") for bar in bars]
        assert told == values and bars[0].text.startswith("up")
        chosen = section.find_elements(By.CSS_SELECTOR, ".bar.chosen")
        assert len(chosen) == 1 and chosen[0].text.split("\n")[0] == saliency.ACTION_NAMES[each.trajectory.action[3]]
    with_maps = browser.execute_script(COLOURED, 0)
    browser.find_element(By.ID, "over").click()
    time.sleep(0.5)
    assert browser.execute_script(COLOURED, 0) != with_maps > 0
    cells[0].click()
    assert "frame t = 0" in sections[1].text
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def test_the_page_is_self_contained(folder, tmp_path):
    found = saliency.gradient_saliency(pixel_agent(folder), trajectory_of(pixel_agent(folder), 2))
    saliency.write_page(tmp_path / "page.html", [found])
    text = (tmp_path / "page.html").read_text()
    assert "http:" not in text and "https:" not in text and "src=" not in text and text.count("data:image/png") == 3


def test_the_steps_shown_include_both_ends():
    shares = np.array([0.1, 0, 0.2, 0, 0.3, 0, 0, 0.4])
    assert saliency.most_relevant_steps(shares, 4) == [2, 4, 6, 7] and saliency.most_relevant_steps(shares, 5) == [
        2,
        4,
        5,
        6,
        7,
    ]
    assert saliency.most_relevant_steps(shares[:1], 6) == [0] and saliency.most_relevant_steps(shares[:4], 8) == [
        0,
        1,
        2,
        3,
    ]
    assert saliency.evenly_spaced(40, 4) == [0, 13, 26, 39] and saliency.evenly_spaced(3, 8) == [0, 1, 2]
    assert saliency.evenly_spaced(1, 8) == [0]


def test_twins_is_another_name_of_the_flag_twin():
    import tyro

    assert tyro.cli(Args, args=["--twins", "both"]).twin == "both"
    assert Path(Args().runs[0]).parent.name == "agents"
