"""Starts `metalabelnet` again and again without importing torch each time: a process that forks.

On standard output it says which modules the import of the command line brought in. Then it runs the data of its
argument for two epochs, so that torch loads what it loads on first use. Then for every line of standard input, a
JSON object with `arguments`, `out` and `err`, it forks a child in a session of its own which runs that command
line and nothing else, and says its process id; when the child has ended it says its code.
"""

import json
import os
import sys

from metalabelnet.cli import main

MODULES = sorted(sys.modules)


def say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def warm_up(data: str) -> None:
    import torch

    from metalabelnet.train import recipe, train

    torch.set_num_threads(1)
    train(recipe(data, clean=18, epochs=2, warmup=1, batch_size=12, device="cpu"))


def child(order: dict[str, object]) -> None:
    os.setsid()
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(str(order[name]), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["metalabelnet", *order["arguments"]]  # type: ignore[misc]
    code = main()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    say(MODULES)
    warm_up(sys.argv[1])
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            child(json.loads(line))
        say(pid)
        say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
