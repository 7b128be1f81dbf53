"""How much of the card a kernel takes.

Alone it takes all processors, to be done soon. Where several runs are on the card at the same time, few processors with
more to do each are better: the beginning and the end of a block, when nothing is multiplied, come less often, there are
fewer parts of sums to add up, and others have the rest of the card. Sums in other parts are rounded in other places:
in bfloat16 a run in company is not the same to the last digit as it is alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import fx

SHARES = 4  # of a card, at most
PROCESSORS = 2  # the place of their number among the arguments of both operators


def in_company(recording: fx.GraphModule, runs: int) -> None:
    """Have the kernels of a recording leave room for those of other runs: so many are on the card, with this one."""
    ours = (torch.ops.metalabelnet.conv3x3.default, torch.ops.metalabelnet.grad3x3.default)
    for node in recording.graph.nodes:
        if node.target in ours:
            node.update_arg(PROCESSORS, max(1, node.args[PROCESSORS] // min(runs, SHARES)))
    recording.recompile()
