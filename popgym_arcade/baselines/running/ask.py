"""A program that prints the types of a script's arguments as JSON, or what is wrong with one of several command lines.

tune.py, which must not import JAX itself, runs it in a separate process, with `python -c`.
"""

import dataclasses
import importlib
import json
import sys
import typing

folder, name, lines, root = sys.argv[1:]
sys.path[0:0] = [folder, root]
from popgym_arcade.baselines.errors import UserError  # noqa: E402
from popgym_arcade.baselines.running.command_line import parse_args  # noqa: E402

args_class = importlib.import_module(name).Args
try:
    for flags in json.loads(lines):
        parse_args(args_class, flags)
except UserError as error:
    sys.exit(str(error))
kinds = typing.get_type_hints(args_class)
print(json.dumps({field.name: getattr(kinds[field.name], "__name__", "") for field in dataclasses.fields(args_class)}))
