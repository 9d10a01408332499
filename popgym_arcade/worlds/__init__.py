"""Other libraries' environments behind gymnax's interface, named `LIBRARY/ID`, such as `atari/Pong-v5`.

Each library has a module here, which is imported only when one of its ids is used. It supplies

* `ids() -> list[str]`, the part after the slash of every id, and
* `make(name) -> Environment`, for one of them.

Environments that run on the host extend `host.HostEnvironment`, those written in JAX `device.DeviceEnvironment`.
"""

import difflib
import functools
import importlib

from gymnax.environments.environment import Environment

# library: (what to import, the extra of popgym-arcade that installs it)
LIBRARIES = {
    "atari": ("ale_py", "atari"),
    "atari2p": ("multi_agent_ale_py", "atari2p"),
    "brax": ("brax", "brax"),
    "craftax": ("craftax", "craftax"),
    "envpool": ("envpool", "envpool"),
    "jumanji": ("jumanji", "jumanji"),
    "navix": ("navix", "navix"),
    "pgx": ("pgx", "pgx"),
    "playground": ("mujoco_playground", "playground"),
    "xminigrid": ("xminigrid", "xminigrid"),
}


@functools.cache
def make_world(env_id: str) -> Environment:
    """The environment that `LIBRARY/ID` names; the same object every time.

    Raises:
        ValueError: in one line, for an unknown library or id, with the closest ones, and for a library that is not
            installed or cannot be imported
    """
    library, _, name = env_id.partition("/")
    if library not in LIBRARIES:
        raise ValueError(f"{library!r} is not a library: use one of {', '.join(LIBRARIES)}")
    package, extra = LIBRARIES[library]
    try:
        importlib.import_module(package)
        module = importlib.import_module(f"popgym_arcade.worlds.{library}")
    except ModuleNotFoundError as error:
        if error.name != package:
            raise ValueError(f"{package} cannot be imported: {error}") from None
        raise ValueError(f"{library} is not installed: pip install 'popgym-arcade[{extra}]'") from None
    except Exception as error:
        raise ValueError(f"{package} cannot be imported: {' '.join(str(error).split())}") from None
    ids = module.ids()
    if name not in ids:
        close = [f"{library}/{known}" for known in difflib.get_close_matches(name, ids, 3, 0)]
        raise ValueError(f"{library} has no {name!r}: did you mean {' or '.join(close)}?")
    return module.make(name)
