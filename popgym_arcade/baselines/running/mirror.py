"""`--track`: the curves of a run at Weights & Biases."""

import contextlib
import dataclasses
import json
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tqdm import tqdm

from popgym_arcade.baselines.errors import CannotMirror, UserError, one_line
from popgym_arcade.baselines.running.files import whole_file


def check_tracking() -> None:
    """Raises UserError if Weights & Biases is not installed or cannot be reached, or nobody is logged in."""
    online = os.environ.get("WANDB_MODE", "online") in ("online", "shared")
    try:
        import wandb  # imported only here, because nothing else needs it

        logged_in = not online or wandb.login(verify=True)  # on a terminal this asks for the key
    except ImportError:
        raise UserError("--track mirrors to Weights & Biases: pip install wandb, or leave it out") from None
    except Exception as error:
        raise UserError(f"--track: {one_line(error)}; WANDB_MODE=offline needs no login") from None
    if not logged_in:
        raise UserError("--track: nobody is logged in to Weights & Biases: wandb login, or WANDB_MODE=offline")


class Mirror:
    """Copies every point of the curves to Weights & Biases. Once it has started, its errors never stop the run.

    `wandb.json` in the run folder keeps its id and the last step of each curve, so that a resumed run continues there
    and repeats no point.
    """

    def __init__(self, folder: Path, args: Any):
        """Raises CannotMirror if no run can be started."""
        import wandb

        self.path = folder / "wandb.json"
        where = {"project": args.wandb_project_name, "entity": args.wandb_entity or None, "dir": folder}
        name, config = folder.resolve().name, dataclasses.asdict(args)
        try:
            saved = json.loads(self.path.read_text()) if self.path.exists() else {}
            self.id, self.last_steps = saved.get("id", uuid.uuid4().hex), saved.get("last_steps", {})
            self.run = wandb.init(**where, id=self.id, name=name, config=config, resume="allow")
            self.run.define_metric("*", step_metric="global_step")
        except Exception as error:
            raise CannotMirror(f"--track: {one_line(error)}") from None
        self.save()

    @contextlib.contextmanager
    def without_stopping(self) -> Iterator[None]:
        """Within the context, an error ends the mirror, with one line, and training continues."""
        try:
            yield
        except Exception as error:
            self.run = None
            tqdm.write(f"--track: continuing without Weights & Biases: {one_line(error)}", file=sys.stderr)

    def log(self, tag: str, value: float, step: int) -> None:
        """Copies a point, unless the curve has one at this step or later."""
        if self.run and step > self.last_steps.get(tag, -1):
            with self.without_stopping():
                self.run.log({tag: value, "global_step": step})
                self.last_steps[tag] = step

    def save(self) -> None:
        """Replaces `wandb.json` as a whole, so that it is never half written."""
        with self.without_stopping(), whole_file(self.path) as draft:
            draft.write_text(json.dumps({"id": self.id, "last_steps": self.last_steps}))

    def finish(self, error_type, *_) -> None:
        """For an `ExitStack`, which passes the type of the error that ended training early, or None."""
        self.save()
        if self.run:
            with self.without_stopping():
                self.run.finish(exit_code=int(error_type is not None))
