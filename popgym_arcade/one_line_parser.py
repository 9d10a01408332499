"""The parser of the package's own commands."""

import argparse
from typing import NoReturn


class OneLineParser(argparse.ArgumentParser):
    """Reports errors in one line, and exits with code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")
