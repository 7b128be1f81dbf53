"""A fork server for `metalabelnet review`: many pages without importing PyTorch for each.

It imports the command and prints "ready". For every line of standard input, a JSON object with `arguments` and the path
`out` of a named pipe, it forks a child that runs this command line with the pipe as standard output, and prints the
child's process id.
"""

import json
import os
import signal
import sys

import uvicorn  # noqa: F401  (imported once here, not in every child)

from metalabelnet.cli import main


def run_command(arguments: list[str], out: str) -> None:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(out, os.O_WRONLY), 1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.argv = ["metalabelnet", *arguments]
    code = main()
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended children leave no zombies
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            run_command(request["arguments"], request["out"])
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
