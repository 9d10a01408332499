"""Play a game with the keyboard: `popgym-arcade-play NavigatorEasy`, or against an agent: `--against RUN`.

The arrow keys and space are the five actions. The game waits for a key; with `--fps`, games that move on their own keep
moving. The window needs pygame-ce and a GIF needs pillow: `pip install 'popgym_arcade[human]'` installs both.
"""

import argparse
import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from popgym_arcade.environments.arcade import DOWN, FIRE, LEFT, OBS_SIZES, RIGHT, UP
from popgym_arcade.environments.two_player import ArcadeSeats
from popgym_arcade.one_line_parser import OneLineParser
from popgym_arcade.registration import make_game

MOVING = ("Breakout", "CartPole", "NoisyCartPole", "Skittles", "Tetris")  # families that move on their own: FIRE waits
WAIT = FIRE
WINDOW = 768  # approximate height of the window in pixels
GAP = 8  # pixels between two twins
KEY_MILLISECONDS = 100  # longest single wait for a key: Python does not handle Ctrl-C during one
FRAME_MILLISECONDS = 200  # of a GIF, without --fps


class Session:
    """One player's game: its state, and what the screen shows. Independent of windows and keys.

    state: the environment's. After the end of an episode its last state, until `restart`.
    score: int, the state's score, or the steps so far in a game without one.
    episode_return: float, undiscounted.
    over: bool, whether the episode has ended.
    """

    def __init__(self, env_id: str, twins: Sequence[bool], obs_size: int, seed: int):
        """`twins` are the values of `partial_obs` to show, from left to right. Raises ValueError for an unknown id."""
        environments = [make_game(env_id, partial_obs, obs_size) for partial_obs in twins]
        self._env, self._params = environments[0], environments[0].default_params
        self._draw = jax.jit(lambda state: [env.get_obs(state) for env in environments])
        self._key = jax.random.key(seed)
        self.restart()

    def restart(self) -> None:
        """Begin a new episode."""
        self._key, key = jax.random.split(self._key)
        _, self.state = self._env.reset(key, self._params)
        self.episode_return, self.over = 0.0, False

    def act(self, action: int) -> None:
        """Take a step; does nothing after the end of an episode."""
        if self.over:
            return
        self._key, key = jax.random.split(self._key)
        _, _, reward, terminated, truncated, info = self._step(key, action)
        self.state = info["final_state"]
        self.episode_return += float(reward)
        self.over = bool(terminated | truncated)

    def _step(self, key: jax.Array, action: int) -> tuple:
        """What the environment's step returns."""
        return self._env.step(key, self.state, action, self._params)

    @property
    def score(self) -> int:
        """The number that the screen shows."""
        return int(getattr(self.state, "score", self.state.time))

    def picture(self) -> np.ndarray:
        """What the twins show, side by side, uint8[obs_size, width, 3]."""
        first, *others = (np.asarray(frame) for frame in self._draw(self.state))
        gap = np.full((len(first), GAP, 3), 255, np.uint8)
        return np.concatenate([first, *(part for frame in others for part in (gap, frame))], axis=1)


class Duel(Session):
    """A two-player game: the player has the second seat, a trained agent the first."""

    def __init__(self, agent, twins: Sequence[bool], obs_size: int, seed: int):
        """`agent` is an Agent of `popgym_arcade.analysis.opponent`."""
        from popgym_arcade.analysis.opponent import Opponent

        self._opponent = Opponent(agent)
        super().__init__(agent.args.env_id, twins, obs_size, seed)
        self._play = jax.jit(ArcadeSeats(self._env).step)

    def restart(self) -> None:
        super().restart()
        self._opponent.begin(self.state)

    def _step(self, key: jax.Array, action: int) -> tuple:
        """Both seats' step."""
        actions = jnp.array([self._opponent.act(self.state), action])
        *first, reward, terminated, truncated, info = self._play(key, self.state, actions, self._params)
        return *first, reward[1], terminated, truncated, info


def expanded(path: str) -> Path:
    """A path with a leading `~` replaced by the home folder."""
    return Path(os.path.expanduser(path))


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags on the command line, checked as far as possible without a window."""
    parser = OneLineParser("popgym-arcade-play", description="Play a game with arrows and space; R restarts, Q quits.")
    parser.add_argument("env_id", nargs="?", help="a game: NavigatorEasy, for example, or MODULE:CLASS of your own")
    parser.add_argument(
        "--against", metavar="RUN", help="play a two-player arcade game against the agent of a run folder"
    )
    parser.add_argument("-p", "--partial-obs", action="store_true", help="show the partially observable twin")
    parser.add_argument("--both", action="store_true", help="show both twins side by side")
    parser.add_argument("-o", "--obs-size", type=int, choices=OBS_SIZES, default=256, help="side of a frame in pixels")
    parser.add_argument("--fps", type=float, help=f"steps per second, even without a key, for {', '.join(MOVING)}")
    parser.add_argument("--record", type=expanded, metavar="FILE.gif", help="record the session as a GIF")
    parser.add_argument("--seed", type=int, help="seed of the first episode and all that follow; random by default")
    args = parser.parse_args(argv)
    if (args.env_id is None) == (not args.against):
        parser.error("name either a game or, with --against, a run folder")
    args.opponent = _opponent(parser, args.against) if args.against else None
    args.env_id = args.opponent.args.env_id if args.against else args.env_id
    if args.both and args.partial_obs:
        parser.error("--both shows both twins: leave -p out")
    if args.seed is not None and not 0 <= args.seed < 2**32:
        parser.error(f"--seed {args.seed}: use a number from 0 to {2**32 - 1}")
    if args.fps is not None and not 0 < args.fps <= 1000:
        parser.error(f"--fps {args.fps:g}: use a number above 0, up to 1000")
    if args.fps is not None and ":" not in args.env_id and not args.env_id.startswith(MOVING):
        parser.error(f"--fps: {args.env_id} moves only on a key; games that move on their own: {', '.join(MOVING)}")
    if args.record is not None and args.record.suffix != ".gif":
        parser.error(f"--record {args.record}: use a name that ends with .gif")
    if args.record is not None and args.record.exists():
        parser.error(f"--record {args.record} already exists: use another name")
    if args.record is not None and not args.record.absolute().parent.is_dir():
        parser.error(f"--record {args.record}: there is no folder {args.record.parent}")
    if args.record is not None and not os.access(args.record.absolute().parent, os.W_OK):
        parser.error(f"--record {args.record}: the folder {args.record.parent} is not writable")
    try:
        make_game(args.env_id)
    except ValueError as error:
        parser.error(str(error))
    return args


def _opponent(parser: OneLineParser, folder: str):
    """The agent of a run folder."""
    try:
        from popgym_arcade.analysis.opponent import load_opponent
        from popgym_arcade.baselines.errors import UserError
    except ImportError as error:
        parser.error(f"--against needs {error.name}: pip install 'popgym_arcade[baselines]'")
    try:
        return load_opponent(folder)
    except UserError as error:
        parser.error(f"--against {error}")


def play(args: argparse.Namespace, pygame) -> Session:
    """Open a window, play until Q is pressed or the window is closed, and return the session."""
    twins = (False, True) if args.both else (args.partial_obs,)
    seed = secrets.randbits(32) if args.seed is None else args.seed
    if args.opponent:
        session = Duel(args.opponent, twins, args.obs_size, seed)
    else:
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
                # a step takes one action: the first key since the last step, else a key that is held down
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
    """Keys pressed since the last call (closing the window is Q). Waits for one, or with `fps` for the next frame."""
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
    """The largest whole multiple of a picture's size, up to `WINDOW` high, that leaves a tenth of the desktop free."""
    most = min(WINDOW // height, int(0.9 * desktop[0]) // width, int(0.9 * desktop[1]) // height)
    return width * max(1, most), height * max(1, most)


def _show(session: Session, frame: np.ndarray, env_id: str, window, pygame) -> None:
    """Show a picture in the window, and score and return in its title."""
    surface = pygame.surfarray.make_surface(frame.swapaxes(0, 1))
    pygame.transform.scale(surface, window.get_size(), window)
    pygame.display.flip()
    end = "  over: R restarts, Q quits" if session.over else ""
    pygame.display.set_caption(f"{env_id}  score {session.score}  return {session.episode_return:.3f}{end}")


def _save(frames: list[np.ndarray], path: Path, milliseconds: int) -> None:
    """Write a GIF, with at least 20 ms per frame: GIFs count in hundredths of a second. It is never half written."""
    from PIL import Image

    first, *others = (Image.fromarray(frame) for frame in frames)
    draft = path.with_name(f"{path.stem}.tmp.gif")
    try:
        first.save(draft, save_all=True, append_images=others, duration=max(20, milliseconds), loop=0)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of `popgym-arcade-play`. Exits with code 2 and one line on bad input."""
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
    except KeyboardInterrupt:  # a recording is already saved
        sys.exit(130)
    except (pygame.error, OSError) as error:
        print(f"popgym-arcade-play: error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
