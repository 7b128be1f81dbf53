"""A fork server: runs many commands without importing PyTorch for each.

It imports the package and trains two epochs on the data of its argument, so that everything loaded on first use is
loaded, and prints "ready". For every line of standard input, a JSON object with `arguments`, `out` and `err`, it forks
a child in a new session that runs this command line. It prints the child's process id and, at its end, its exit code.

With `ignore_hangup`, the child runs as under nohup. With `kill_at`, it is killed at that file operation, and in the
middle of it if it writes. With `count`, it writes the number of its file operations to that file.
"""

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from metalabelnet.cli import main

FILE_OPERATIONS = ("open", "write", "fsync", "replace", "rename", "unlink", "mkdir", "rmdir")


def send(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def warm_up(data: str) -> None:
    import torch

    import metalabelnet.cli.commands.compare
    import metalabelnet.cli.commands.reproduce
    import metalabelnet.cli.commands.train  # noqa: F401  (imported once here, not in every child)
    from metalabelnet.train import make_run, train

    torch.set_num_threads(1)
    train(make_run(data, recipe="paper", clean=18, epochs=2, warmup=1, batch_size=12, device="cpu"))


def run_command(request: dict[str, object]) -> None:
    os.setsid()
    for number, name in ((1, "out"), (2, "err")):
        # A terminal that is opened for reading, too, becomes the controlling terminal: SIGHUP is sent when it closes.
        os.dup2(os.open(str(request[name]), os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["metalabelnet", *request["arguments"]]  # type: ignore[misc]
    # nohup ignores SIGHUP; the tests themselves may have been started with it
    signal.signal(signal.SIGHUP, signal.SIG_IGN if request.get("ignore_hangup") else signal.SIG_DFL)
    done = count_file_operations(int(str(request.get("kill_at") or 0)))
    if "kill_at" in request:
        warnings.simplefilter("error", UserWarning)  # a kill damages no checkpoint
    code = main()
    if request.get("count"):
        Path(str(request["count"])).write_text(str(done[0]))
    sys.stdout.flush()
    os._exit(code)


def count_file_operations(kill_at: int) -> list[int]:
    """Wrap the file operations of `os`. Return their count so far; the process is killed at number `kill_at`."""
    done = [0]

    def wrap(name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **how: Any) -> Any:
            done[0] += 1
            if done[0] == kill_at:
                if name == "write":
                    operation(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return operation(*args, **how)

        return wrapped

    for name in FILE_OPERATIONS:
        setattr(os, name, wrap(name, getattr(os, name)))
    return done


if __name__ == "__main__":
    warm_up(sys.argv[1])
    send("ready")
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            run_command(json.loads(line))
        send(pid)
        send(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
