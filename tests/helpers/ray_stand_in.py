"""A stand-in for the package ray: tasks run one after another in this process, and can be killed."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class RayError(Exception):
    """Base class of the errors of Ray."""


class TaskCancelledError(RayError):
    """A task was cancelled before it started."""


class WorkerCrashedError(RayError):
    """The process of a task was killed more often than it is repeated."""


class Killed(BaseException):
    """Ends a task as a SIGKILL would."""


class Task:
    """A task that has not run yet, or its result."""

    def __init__(self, run: Callable[[], Any], retries: int) -> None:
        self.run, self.tries = run, retries + 1
        self.ended, self.result, self.error = False, None, None

    def execute(self) -> None:
        self.ended = True
        for _ in range(self.tries):
            try:
                self.result = self.run()
            except Killed:
                continue
            return
        self.error = WorkerCrashedError("killed")


class Remote:
    """A function or class that `remote` has made remote."""

    def __init__(self, ray: "RayStandIn", target: Any, options: dict[str, Any]) -> None:
        self.ray, self.target, self.chosen = ray, target, options

    def options(self, **options: Any) -> "Remote":
        return Remote(self.ray, self.target, options)

    def remote(self, *args: Any) -> Any:
        self.ray.options[self.target.__name__] = self.chosen
        if not isinstance(self.target, type):
            return Task(lambda: self.target(*args), self.chosen["max_retries"])
        actor = self.target()
        return SimpleNamespace(post=Call(self.ray, actor.post), collect=Call(self.ray, actor.collect))


class Call:
    """A method of an actor; `post` may kill the task that calls it."""

    def __init__(self, ray: "RayStandIn", method: Callable[..., Any]) -> None:
        self.ray, self.method = ray, method

    def remote(self, *args: Any) -> Task:
        if self.method.__name__ == "post" and next(self.ray.posts) in self.ray.kills:
            raise Killed
        task = Task(lambda: self.method(*args), 0)
        task.execute()
        return task


class RayStandIn:
    """The functions of Ray that the package calls.

    kills    the numbers of the messages at which the task that sends them is killed
    options  what each task and actor was started with
    """

    exceptions = SimpleNamespace(
        RayError=RayError, TaskCancelledError=TaskCancelledError, WorkerCrashedError=WorkerCrashedError
    )

    def __init__(self, *nodes: dict[str, float], kills: Any = (), init_error: Exception | None = None) -> None:
        self.resources, self.kills, self.init_error = nodes or ({"CPU": 2.0},), kills, init_error
        self.options: dict[str, dict[str, Any]] = {}
        self.initialized: dict[str, Any] | None = None
        self.posts = itertools.count()

    def init(self, **how: Any) -> None:
        if self.init_error is not None:
            raise self.init_error
        self.initialized = how

    def shutdown(self) -> None:
        self.initialized = None

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": node} for node in self.resources]

    def remote(self, target: Any) -> Remote:
        return Remote(self, target, {})

    def wait(self, tasks: list[Task], timeout: float) -> tuple[list[Task], list[Task]]:
        """Run the first task that was not cancelled."""
        first = next((task for task in tasks if task.ended), tasks[0])
        if not first.ended:
            first.execute()
        return [first], [task for task in tasks if task is not first]

    def get(self, task: Task) -> Any:
        if task.error is not None:
            raise task.error
        return task.result

    def cancel(self, task: Task) -> None:
        task.ended, task.error = True, TaskCancelledError("cancelled")
