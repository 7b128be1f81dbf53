"""Write golden.json anew: the loss of every step of every method on the small problem."""

import json
from pathlib import Path

import torch
from small import Walk, small_problem, small_run

from metalabelnet.methods import METHODS

if __name__ == "__main__":
    torch.set_num_threads(1)
    traces = {name: Walk(small_run(name), small_problem()).go().losses for name in METHODS}
    Path(__file__).with_name("golden.json").write_text(json.dumps(traces, indent=1) + "\n")
