"""The templates for SLURM, with commands in place of SLURM's that note what they are called with."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEMPLATES = sorted(path.name for path in (ROOT / "benchmark" / "slurm").glob("*.sbatch"))


@pytest.fixture
def submit(tmp_path):
    """submit(template, *args, code=0) -> (exit code, calls of srun and scontrol), in a folder like a fresh clone."""
    (tmp_path / "benchmark").symlink_to(ROOT / "benchmark")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, code in (("srun", "$CODE"), ("scontrol", "0")):
        (tools / name).write_text(f'#!/bin/bash\necho "{name} $*" >> "$CALLS"\nexit {code}\n')
        (tools / name).chmod(0o755)

    def run(template, *args, code=0):
        calls = tmp_path / "calls"
        calls.write_text("")
        env = {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_ID": "7", "CODE": str(code), "CALLS": str(calls)}
        env |= {"PATH": f"{tools}:{os.environ['PATH']}"}
        line = ["bash", str(ROOT / "benchmark" / "slurm" / template), *args]
        return subprocess.run(line, env=env, timeout=30, check=False).returncode, calls.read_text().splitlines()

    return run


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_new_job_starts_a_run_and_a_requeued_one_resumes_it(submit, tmp_path, template):
    together = "--distributed " if template == "two_nodes.sbatch" else ""
    code, calls = submit(template, "--env-id", "CartPoleEasy", "--seed", "3")
    begin = f"srun .venv/bin/python pqn_rnn.py {together}--env-id CartPoleEasy --seed 3 --run-dir runs/slurm-7"
    assert (code, calls) == (0, [begin])
    (tmp_path / "runs/slurm-7/a_run/checkpoints").mkdir(parents=True)
    code, calls = submit(template, "--env-id", "CartPoleEasy", "--seed", "3")
    assert (code, calls) == (0, [f"srun .venv/bin/python pqn_rnn.py {together}--resume runs/slurm-7/a_run"])


@pytest.mark.parametrize("code, requeued", [(143, True), (3, False), (137, False)])
def test_a_job_that_ran_out_of_time_is_requeued_and_a_failed_one_is_not(submit, code, requeued):
    ended, calls = submit("one_gpu.sbatch", code=code)
    assert ended == code and calls[1:] == ["scontrol requeue 7"] * requeued


def test_the_sizes_are_what_the_names_say():
    said = {name: (ROOT / "benchmark" / "slurm" / name).read_text() for name in TEMPLATES}
    assert "--nodes=1" in said["one_gpu.sbatch"] and "--gpus=1\n" in said["one_gpu.sbatch"]
    assert "--nodes=1" in said["one_node.sbatch"] and "--gpus-per-node=8" in said["one_node.sbatch"]
    assert "--nodes=2" in said["two_nodes.sbatch"] and "--ntasks-per-node=8" in said["two_nodes.sbatch"]
