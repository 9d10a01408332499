"""Errors that end a run with one line and an exit code."""


class UserError(Exception):
    """Something the user can fix. It is shown as one line, and the exit code is 2."""

    exit_code = 2


class WrongType(UserError):
    """An argument does not have its flag's type."""


class Diverged(UserError):
    """A metric became NaN or infinite."""

    exit_code = 3


class CannotWrite(UserError):
    """The disk is full or gone, or the folder is not writable."""

    exit_code = 4


class CannotMirror(CannotWrite):
    """Weights & Biases did not start a run. Like a disk error, it affects only one of several processes."""

    exit_code = 2


class Finished(Exception):
    """A resumed run has nothing left to train. Not an error: it exits the `with` statement of a `Run`."""


def one_line(error: Exception) -> str:
    """Another library's error in one line, with its type, because some messages are empty without it."""
    return " ".join(f"{type(error).__name__}: {error}".split())
