"""The script of scale.md that starts Ray in a Slurm job, with stand-ins of the commands of Slurm and Ray."""

import os
import re
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-it-works" / "scale.md"
LOG = 'echo "$(basename "$0") $*" >> "$LOG"\n'
COMMANDS = {
    "scontrol": "printf 'node1\\nnode2\\nnode3\\n'",
    "srun": LOG + 'case "$*" in *--head*) touch "$LOG.head";; esac',
    "ray": '[ -e "$LOG.head" ]',  # `ray status` fails until the head has started
    "metalabelnet": LOG + "exit 3",
    "sleep": "/bin/sleep 0.05",
}


def ray_script() -> str:
    (script,) = [
        block
        for block in re.findall(r"```\n(#!/bin/bash\n.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
        if "ray start" in block
    ]
    return str(script)


@pytest.mark.parametrize("nodes", [1, 3])
def test_ray_is_started_on_all_machines_before_the_runs(nodes: int, tmp_path: Path) -> None:
    for name, body in COMMANDS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    log = tmp_path / "log"
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LOG": str(log), "SLURM_NNODES": str(nodes)}
    environment |= {"SLURM_JOB_NODELIST": "node[1-3]", "SLURM_GPUS_PER_NODE": "8", "SLURM_CPUS_PER_TASK": "64"}
    script = ray_script() + "status=$?; wait; exit $status\n"  # for what the stand-ins write
    done = subprocess.run(["bash", "-c", script], env=environment, check=False, timeout=60)
    assert done.returncode == 3  # that of the command is that of the job
    head, *others = log.read_text().splitlines()
    per_node = "--num-gpus 8 --num-cpus 64 --block"
    assert head == f"srun --nodes=1 --ntasks=1 --nodelist=node1 ray start --head --port 6379 {per_node}"
    expected = {"metalabelnet reproduce clothing1m-table --data-dir clothing1m.packed --cluster ray:node1:6379"}
    if nodes > 1:
        expected.add(f"srun --nodes=2 --ntasks=2 --exclude=node1 ray start --address node1:6379 {per_node}")
    assert {*others} == expected
    assert len(others) == len(expected)
