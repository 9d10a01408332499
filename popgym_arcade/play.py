"""Play a game with the keyboard: `popgym-arcade-play NavigatorEasy`.

Arrows and space are the five actions. The game waits for a key; with `--fps` those that move by themselves do. The
window needs pygame-ce, a GIF pillow: both come with `pip install 'popgym_arcade[human]'`.
"""

import argparse
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import gymnax
import jax
import numpy as np

import popgym_arcade
from popgym_arcade.environments.arcade import DOWN, FIRE, LEFT, OBS_SIZES, RIGHT, UP

MOVING = ("Breakout", "CartPole", "NoisyCartPole", "Skittles", "Tetris")  # families in which FIRE lets a step pass
WAIT = FIRE
WINDOW = 768  # pixels of a window's side, about
GAP = 8  # pixels between two twins
KEY_MILLISECONDS = 100  # after which a wait for a key begins anew: Python handles no Ctrl-C during it
FRAME_MILLISECONDS = 200  # of a GIF, where no --fps is given


class Session:
    """One player's game: its state, and what the screen shows. Knows nothing of windows and keys.

    state: of the environment. After the end of an episode the last one, until `restart`.
    score: int, the state's score, or the steps of a game that scores them.
    episode_return: float, undiscounted.
    over: bool, whether the episode has ended.
    """

    def __init__(self, env_id: str, twins: Sequence[bool], obs_size: int, seed: int):
        """`twins` are the values of `partial_obs` to show, from left to right. A ValueError for an unknown id."""
        environments = [gymnax.make(env_id, partial_obs=partial_obs, obs_size=obs_size) for partial_obs in twins]
        self._env, self._params = environments[0]
        self._draw = jax.jit(lambda state: [env.get_obs(state) for env, _ in environments])
        self._key = jax.random.key(seed)
        self.restart()

    def restart(self) -> None:
        """Begin a new episode."""
        self._key, key = jax.random.split(self._key)
        _, self.state = self._env.reset(key, self._params)
        self.episode_return, self.over = 0.0, False

    def act(self, action: int) -> None:
        """Take a step; nothing happens after the end of an episode."""
        if self.over:
            return
        self._key, key = jax.random.split(self._key)
        _, _, reward, terminated, truncated, info = self._env.step(key, self.state, action, self._params)
        self.state = info["final_state"]
        self.episode_return += float(reward)
        self.over = bool(terminated | truncated)

    @property
    def score(self) -> int:
        """The number that the screen shows."""
        return int(getattr(self.state, "score", self.state.time))

    def picture(self) -> np.ndarray:
        """What the twins show, side by side, uint8[obs_size, width, 3]."""
        first, *others = (np.asarray(frame) for frame in self._draw(self.state))
        gap = np.full((len(first), GAP, 3), 255, np.uint8)
        return np.concatenate([first, *(part for frame in others for part in (gap, frame))], axis=1)


class _Parser(argparse.ArgumentParser):
    """Refuses in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def expanded(path: str) -> Path:
    """A path in which a leading `~` is the home folder."""
    return Path(os.path.expanduser(path))


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line's flags, checked as far as they can be without a window."""
    parser = _Parser("popgym-arcade-play", description="Play a game with arrows and space; R restarts, Q quits.")
    parser.add_argument("env_id", help="NavigatorEasy, for instance")
    parser.add_argument("-p", "--partial-obs", action="store_true", help="show the partially observable twin")
    parser.add_argument("--both", action="store_true", help="show both twins side by side")
    parser.add_argument("-o", "--obs-size", type=int, choices=OBS_SIZES, default=256, help="pixels of a frame's side")
    parser.add_argument("--fps", type=float, help=f"steps a second without a key being pressed: {', '.join(MOVING)}")
    parser.add_argument("--record", type=expanded, metavar="FILE.gif", help="save what was played as a GIF")
    parser.add_argument(
        "--seed", type=int, help="of the first episode and all that follow; without it, another each time"
    )
    args = parser.parse_args(argv)
    if args.both and args.partial_obs:
        parser.error("--both shows both twins: leave -p out")
    if args.seed is not None and not 0 <= args.seed < 2**32:
        parser.error(f"--seed {args.seed}: use a number from 0 to {2**32 - 1}")
    if args.fps is not None and not 0 < args.fps <= 1000:
        parser.error(f"--fps {args.fps:g}: use a number above 0, up to 1000")
    if args.fps is not None and not args.env_id.startswith(MOVING):
        parser.error(f"--fps: {args.env_id} moves only on a key; those that do not are {', '.join(MOVING)}")
    if args.record is not None and args.record.suffix != ".gif":
        parser.error(f"--record {args.record}: use a name that ends with .gif")
    if args.record is not None and args.record.exists():
        parser.error(f"--record {args.record} exists already: use another name")
    if args.record is not None and not args.record.absolute().parent.is_dir():
        parser.error(f"--record {args.record}: there is no folder {args.record.parent}")
    try:
        popgym_arcade.make(args.env_id)
    except ValueError as error:
        parser.error(str(error))
    return args


def play(args: argparse.Namespace, pygame) -> Session:
    """Open a window and play until Q or until it is closed; the session as it was then."""
    twins = (False, True) if args.both else (args.partial_obs,)
    seed = secrets.randbits(32) if args.seed is None else args.seed
    session = Session(args.env_id, twins, args.obs_size, seed)
    pygame.display.init()  # not pygame.init, which looks for sound cards
    frames = [session.picture()]
    height, width = frames[0].shape[:2]
    window = pygame.display.set_mode(_window_size(width, height, pygame.display.get_desktop_sizes()[0]))
    pygame.key.set_repeat(300, 80)
    moves = {pygame.K_UP: UP, pygame.K_DOWN: DOWN, pygame.K_LEFT: LEFT, pygame.K_RIGHT: RIGHT, pygame.K_SPACE: FIRE}
    clock = pygame.time.Clock()
    try:
        while True:
            _show(session, frames[-1], args.env_id, window, pygame)
            pressed = [event.key for event in _events(args.fps, clock, pygame)]
            if pygame.K_q in pressed:
                return session
            actions = [moves[key] for key in pressed if key in moves]
            if args.fps is not None:
                held = pygame.key.get_pressed()
                # a step takes one action: the first key since the last step, else one that is being held
                actions = (actions + [action for key, action in moves.items() if held[key]] + [WAIT])[:1]
            if pygame.K_r in pressed:
                session.restart()
                frames.append(session.picture())
            for action in () if session.over or pygame.K_r in pressed else actions:
                session.act(action)
                frames.append(session.picture())
    finally:
        pygame.quit()
        if args.record is not None:
            milliseconds = FRAME_MILLISECONDS if args.fps is None else round(1000 / args.fps)
            _save(frames, args.record, milliseconds)


def _events(fps: float | None, clock, pygame) -> list:
    """Keys pressed since the last call (closing the window is Q): of at least one, or of a frame's time with `fps`."""
    if fps is None:
        events = [pygame.event.wait(KEY_MILLISECONDS)]
        while events[0].type == pygame.NOEVENT:
            events = [pygame.event.wait(KEY_MILLISECONDS)]
    else:
        clock.tick(fps)
        events = []
    events += pygame.event.get()
    closed = [pygame.event.Event(pygame.KEYDOWN, key=pygame.K_q) for event in events if event.type == pygame.QUIT]
    return [event for event in events if event.type == pygame.KEYDOWN] + closed


def _window_size(width: int, height: int, desktop: tuple[int, int]) -> tuple[int, int]:
    """A whole multiple of a picture's size, about `WINDOW` high, that leaves a tenth of the desktop free."""
    most = min(WINDOW // height, int(0.9 * desktop[0]) // width, int(0.9 * desktop[1]) // height)
    return width * max(1, most), height * max(1, most)


def _show(session: Session, frame: np.ndarray, env_id: str, window, pygame) -> None:
    """Put a picture into the window, score and return into its title."""
    surface = pygame.surfarray.make_surface(frame.swapaxes(0, 1))
    pygame.transform.scale(surface, window.get_size(), window)
    pygame.display.flip()
    end = "  over: R restarts, Q quits" if session.over else ""
    pygame.display.set_caption(f"{env_id}  score {session.score}  return {session.episode_return:.3f}{end}")


def _save(frames: list[np.ndarray], path: Path, milliseconds: int) -> None:
    """Write a GIF, which knows hundredths of a second."""
    from PIL import Image

    first, *others = (Image.fromarray(frame) for frame in frames)
    first.save(path, save_all=True, append_images=others, duration=max(20, milliseconds), loop=0)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of `popgym-arcade-play`. Exits with 2 and one line on bad input."""
    args = parse_args(argv)
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        import PIL  # noqa: F401
        import pygame
    except ImportError as error:
        print(
            f"popgym-arcade-play: error: {error.name} is missing: pip install 'popgym_arcade[human]'", file=sys.stderr
        )
        sys.exit(2)
    try:
        play(args, pygame)
    except KeyboardInterrupt:  # a recording is saved by then
        sys.exit(130)
    except pygame.error as error:
        print(f"popgym-arcade-play: error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
