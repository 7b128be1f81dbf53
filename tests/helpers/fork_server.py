"""A fork server: runs many commands without importing PyTorch for each.

It imports the package and trains two epochs on the data of its argument, so that everything loaded on first use is
loaded, and prints "ready". For every line of standard input, a JSON object with `arguments`, `out` and `err`, it forks
a child in a new session that runs this command line. It prints the child's process id and, at its end, its exit code.
"""

import json
import os
import sys

from metalabelnet.cli import main


def send(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def warm_up(data: str) -> None:
    import torch

    import metalabelnet.cli.commands.compare
    import metalabelnet.cli.commands.reproduce
    import metalabelnet.cli.commands.train  # noqa: F401  (imported once here, not in every child)
    from metalabelnet.train import recipe, train

    torch.set_num_threads(1)
    train(recipe(data, clean=18, epochs=2, warmup=1, batch_size=12, device="cpu"))


def run_command(request: dict[str, object]) -> None:
    os.setsid()
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(str(request[name]), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["metalabelnet", *request["arguments"]]  # type: ignore[misc]
    code = main()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    warm_up(sys.argv[1])
    send("ready")
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            run_command(json.loads(line))
        send(pid)
        send(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
