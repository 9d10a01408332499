"""popgym-arcade-play without a screen: keys go in, the state changes, a picture comes out."""

import os
import signal
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from harness import FEW_USUALLY
from PIL import Image
from untrained_agents import untrained

from popgym_arcade import play
from popgym_arcade.analysis.opponent import Opponent, load_opponent
from popgym_arcade.baselines import seats
from popgym_arcade.environments.arcade import DOWN
from popgym_arcade.environments.pong import PongEasy


@pytest.fixture
def pygame(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    pygame = pytest.importorskip("pygame", reason="requirements-dev.txt has pygame-ce")
    yield pygame
    pygame.quit()


def run(monkeypatch, pygame, line, keys):
    """The session after these keys, each pressed when the game asks for the next; what the window showed each time."""
    keys = iter([*keys, pygame.K_q])
    shown, wait = [], pygame.event.wait

    def press():
        window = pygame.display.get_surface()
        shown.append((pygame.surfarray.array3d(window).swapaxes(0, 1), pygame.display.get_caption()[0]))
        pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=next(keys)))

    def waited(_milliseconds):
        pygame.event.clear()
        press()
        return wait()

    class Clock:  # of a game with --fps
        def tick(self, _fps):
            pygame.event.clear()
            press()

    with monkeypatch.context() as patch:
        patch.setattr(pygame.event, "wait", waited)
        patch.setattr(pygame.time, "Clock", Clock)
        return play.play(play.parse_args(line.split()), pygame), shown


@pytest.mark.parametrize("env_id", FEW_USUALLY)
def test_every_family_can_be_played(monkeypatch, pygame, env_id):
    keys = [pygame.K_SPACE, pygame.K_LEFT, pygame.K_DOWN]
    session, shown = run(monkeypatch, pygame, f"{env_id} --both --seed 1", keys)
    assert int(session.state.time) == 3
    for picture, title in shown:
        height, width = picture.shape[:2]
        assert height % 256 == 0 and width == (2 * 256 + play.GAP) * height // 256
        assert title.startswith(f"{env_id}  score ")
    assert (shown[0][0] != shown[-1][0]).any()


def test_the_window_shows_the_frame_enlarged(monkeypatch, pygame):
    session, shown = run(monkeypatch, pygame, "NavigatorEasy -o 128 --seed 3", [pygame.K_UP])
    scale = len(shown[-1][0]) // 128
    assert scale >= 3
    np.testing.assert_array_equal(shown[-1][0], session.picture().repeat(scale, 0).repeat(scale, 1))


def test_arrows_move_the_cursor(monkeypatch, pygame):
    start = play.Session("NavigatorEasy", (False,), 128, 5).state
    right, down = (1, 0) if start.x < 7 else (-1, 0), (0, 1) if start.y < 7 else (0, -1)
    keys = {(1, 0): pygame.K_RIGHT, (-1, 0): pygame.K_LEFT, (0, 1): pygame.K_DOWN, (0, -1): pygame.K_UP}
    for x, y in (right, down):
        session, _ = run(monkeypatch, pygame, "NavigatorEasy --seed 5", [keys[x, y]])
        assert (int(session.state.x - start.x), int(session.state.y - start.y)) == (x, y)


def test_other_keys_do_not_move_and_r_restarts(monkeypatch, pygame):
    session, _ = run(monkeypatch, pygame, "CountRecallEasy --seed 0", [pygame.K_SPACE, pygame.K_x, pygame.K_SPACE])
    assert int(session.state.time) == 2 and int(session.state.answered) == 2
    again, _ = run(monkeypatch, pygame, "CountRecallEasy --seed 0", [pygame.K_SPACE, pygame.K_r])
    assert int(again.state.time) == 0 and again.episode_return == 0
    assert (again.state.value_cards != session.state.value_cards).any()


def test_with_fps_the_game_moves_by_itself(monkeypatch, pygame):
    session, _ = run(monkeypatch, pygame, "CartPoleEasy --fps 30 --seed 0", [pygame.K_x] * 4)
    assert int(session.state.time) == 4
    coasting = play.Session("CartPoleEasy", (False,), 256, 0)
    for _ in range(4):
        coasting.act(play.WAIT)
    np.testing.assert_array_equal(session.state.x, coasting.state.x)
    pushed, _ = run(monkeypatch, pygame, "CartPoleEasy --fps 30 --seed 0", [pygame.K_RIGHT] * 4)
    assert pushed.state.x > session.state.x


def test_the_end_of_an_episode_stays_on_the_screen(monkeypatch, pygame):
    session, shown = run(monkeypatch, pygame, "CartPoleEasy --seed 0", [pygame.K_RIGHT] * 15)
    assert session.over and 8 <= int(session.state.time) < 15
    assert "over" in shown[-1][1] and f"return {int(session.state.time) / 200:.3f}" in shown[-1][1]
    assert "over" not in shown[0][1]


PONG = {"env_id": "popgym_arcade.environments.pong:PongEasy"}


@pytest.mark.parametrize("name", ["ppo_selfplay", "pqn_mlp"])
def test_a_person_plays_against_an_agent(monkeypatch, pygame, tmp_path, name):
    """The agent has the left paddle: what its network says of the mirrored frame."""
    folder = untrained(name, tmp_path, **PONG)
    met, act = [], Opponent.act
    monkeypatch.setattr(Opponent, "act", lambda self, state: met.append((state, act(self, state))) or met[-1][1])
    session, shown = run(monkeypatch, pygame, f"--against {folder} --seed 3", [pygame.K_UP] * 4)
    assert int(session.state.time) == 4 == len(met) and shown[0][1].startswith(f"{PONG['env_id']}  score 0")
    assert int(session.state.paddles[1]) == int(met[0][0].paddles[1]) - 4  # the person went up
    agent, game = load_opponent(str(folder)), PongEasy()
    network = agent.script.make_actor(agent.args)[0]
    for t, (state, action) in enumerate(met):
        seen = game.render(game.mirrored(state))[None]
        obs = seats.View(seen, jnp.zeros(1, int), jnp.ones((1, 5), bool)) if name == "ppo_selfplay" else seen
        inputs = seats.in_time((obs, jnp.array([met[t - 1][1]]), jnp.array([t == 0])))
        _, output = agent.script.forward(network, agent.params, agent.script.initial_carry(network, 1), *inputs)
        assert action == int((output.logits if name == "ppo_selfplay" else output.q).argmax())


def test_a_new_game_against_an_agent_begins_with_an_empty_memory(tmp_path):
    folder = untrained("ppo_selfplay", tmp_path, memory="GRU", **PONG)
    duel = play.Duel(load_opponent(str(folder)), (False,), 128, 0)
    first = jax.tree.map(np.asarray, duel._opponent._side.carry)
    for _ in range(3):
        duel.act(DOWN)
    carries = zip(jax.tree.leaves(duel._opponent._side.carry), jax.tree.leaves(first), strict=True)
    assert any(np.any(x != y) for x, y in carries)
    duel.restart()
    jax.tree.map(np.testing.assert_array_equal, duel._opponent._side.carry, first)


def test_a_recording_holds_every_frame(monkeypatch, pygame, tmp_path):
    path = tmp_path / "game.gif"
    run(monkeypatch, pygame, f"NavigatorEasy --seed 1 --record {path}", [pygame.K_LEFT, pygame.K_UP, pygame.K_RIGHT])
    with Image.open(path) as picture:
        assert picture.n_frames >= 2 and picture.size == (256, 256)
    with pytest.raises(SystemExit):
        play.parse_args(["NavigatorEasy", "--record", str(path)])


def test_a_folder_that_cannot_be_written_to_is_refused_at_once(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(SystemExit) as stopped:
        play.parse_args(["NavigatorEasy", "--record", str(tmp_path / "game.gif")])
    assert stopped.value.code == 2 and f"{tmp_path} is not writable" in capsys.readouterr().err


def test_a_disk_that_is_full_at_the_end_is_one_line(capsys, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(play, "play", full)
    with pytest.raises(SystemExit) as stopped:
        play.main(["NavigatorEasy"])
    err = capsys.readouterr().err
    assert stopped.value.code == 2 and err.count("\n") == 1 and "No space left" in err


def test_ctrl_c_ends_the_game_while_it_waits_for_a_key(monkeypatch, pygame):
    wait, timers = pygame.event.wait, []
    end = lambda: pygame.event.post(pygame.event.Event(pygame.KEYDOWN, key=pygame.K_q))

    def waited(*milliseconds):
        if not timers:
            timers.extend([threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)), threading.Timer(10, end)])
            for timer in timers:
                timer.start()
        return wait(*milliseconds)

    monkeypatch.setattr(pygame.event, "wait", waited)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as ended:
            play.main(["NavigatorEasy"])
        assert ended.value.code == 130 and timers[1].is_alive()
    finally:
        signal.signal(signal.SIGINT, before)
        for timer in timers:
            timer.cancel()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("NavigatorEazy", "NavigatorEasy"),
        ("NavigatorEasy -o 100", "128"),
        ("NavigatorEasy -p --both", "leave -p out"),
        ("NavigatorEasy --fps 5", "moves only on a key"),
        ("CartPoleEasy --fps 0", "above 0"),
        ("NavigatorEasy --record video.mp4", ".gif"),
        ("NavigatorEasy --record nowhere/video.gif", "no folder"),
        ("NavigatorEasy --seed -1", "--seed"),
        ("", "name either a game or, with --against, a run folder"),
        ("NavigatorEasy --against runs/A", "name either a game or"),
        ("--against nowhere", "--against nowhere is not a run folder"),
    ],
)
def test_bad_input_is_refused_in_one_line(capsys, line, words):
    with pytest.raises(SystemExit) as stopped:
        play.parse_args(line.split())
    err = capsys.readouterr().err
    assert stopped.value.code == 2 and err.count("\n") == 1 and words in err


def test_without_pygame_the_command_says_what_to_install(tmp_path):
    (tmp_path / "pygame.py").write_text("raise ImportError('no', name='pygame')")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    line = [sys.executable, "-m", "popgym_arcade.play", "NavigatorEasy"]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "popgym_arcade[human]" in done.stderr
