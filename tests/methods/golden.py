"""Rewrite golden.json: the loss of every step on the small problem, for all methods or those named as arguments."""

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
from small_runs import METHOD_VARIANTS, TRAINED_METHODS, StepRunner, small_problem, small_run

if __name__ == "__main__":
    torch.set_num_threads(1)
    file = Path(__file__).with_name("golden.json")
    traces = json.loads(file.read_text()) if sys.argv[1:] else {}
    traces |= {
        name: StepRunner(small_run(name), small_problem(), net_of_run=True).advance().losses
        for name in sys.argv[1:] or [*TRAINED_METHODS, *METHOD_VARIANTS]
    }
    file.write_text(json.dumps(dict(sorted(traces.items())), indent=1) + "\n")
