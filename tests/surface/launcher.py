"""Starts Python programs in a quarter of the time: each is forked from a process that has imported their libraries.

A launcher has a directory with the programs `python` and `interlock`, to put first on PATH. Each call is its own
process, with the caller's arguments, variables, directory, files and signals; a call with an unknown option of Python
runs the real program. `python -m tests.surface.launcher` is the process that is forked.
"""

import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ENGINE = ("interlock.cli", "interlock.testing", "psycopg", "psycopg_pool", "interlock.store.postgres.store")
APPS = (
    "sqlalchemy.dialects.postgresql.psycopg",
    "starlette.applications",
    "uvicorn",
    "httpx",
    "pydantic_settings",
    "aiogram",
    "PIL.Image",
)

REAL = Path(sys.executable).parent
"""The directory of the real programs."""

# The script behind `python` and `interlock`: it starts in 20 ms, because it imports very little.
_SHIM = """#!{python} -IS
import array, json, os, signal, socket, sys
arguments = sys.argv[1:] if os.path.basename(sys.argv[0]) == "python" else ["-m", "interlock", *sys.argv[1:]]
if not arguments or (arguments[0][0] == "-" and arguments[0] not in ("-m", "-c")):
    os.execv({python!r}, [{python!r}, *arguments])
there = socket.socket(socket.AF_UNIX)
there.connect({address!r})
told = json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode()
there.sendmsg([len(told).to_bytes(4, "big")], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
there.sendall(told)
answers = there.makefile("r")
pid = int(answers.readline())
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, lambda number, _: os.kill(pid, number))
code = int(answers.readline() or 1)
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


class Launcher:
    """A process that waits to be forked, and the programs that call it."""

    def __init__(self, directory: Path, address: str) -> None:
        self.path = f"{directory}{os.pathsep}{REAL}"
        """To put first on PATH."""
        for name in ("python", "interlock"):
            shim = directory / name
            shim.write_text(_SHIM.format(python=sys.executable, address=address), encoding="utf-8")
            shim.chmod(0o755)


@contextlib.contextmanager
def launcher(*modules: str) -> Iterator[Launcher]:
    """Start a launcher that has imported these modules."""
    # The address of a socket must be short, and so must the directory's name.
    with tempfile.TemporaryDirectory(prefix="launch_", dir="/tmp") as name:
        address = f"{name}/socket"
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(address)
            server.listen(64)
            command = [sys.executable, "-m", "tests.surface.launcher", str(server.fileno()), *modules]
            root = str(Path(__file__).parents[2])
            process = subprocess.Popen(command, cwd=root, pass_fds=[server.fileno()], stdin=subprocess.DEVNULL)
        try:
            yield Launcher(Path(name), address)
        finally:
            process.kill()
            process.wait()


# ---------------------------------------------------------------- in the forked process
def _received(connection: socket.socket) -> tuple[list[int], Any]:
    head, files, _, _ = socket.recv_fds(connection, 4, 3)
    size, data = int.from_bytes(head, "big"), b""
    while len(data) < size:
        data += connection.recv(size - len(data))
    return files, json.loads(data)


def _watch(connection: socket.socket, pid: int) -> None:
    """Send the exit code. If the caller has gone, kill the program."""
    connection.sendall(f"{pid}\n".encode())
    handle = os.pidfd_open(pid)
    ready, _, _ = select.select([connection, handle], [], [])
    if handle not in ready:
        os.kill(pid, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):
        connection.sendall(f"{code}\n".encode())


def _serve(server: socket.socket) -> tuple[list[int], Any]:
    """Fork for every call; return in the fork, with what it must run."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = server.accept()
        if os.fork():
            connection.close()
            continue
        # One process per call waits for its end, so that calls do not wait for each other.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        server.close()
        files, told = _received(connection)
        if pid := os.fork():
            for file in files:
                os.close(file)
            _watch(connection, pid)
            os._exit(0)
        connection.close()
        return files, told


def _become(files: list[int], arguments: list[str], directory: str, variables: dict[str, str]) -> None:
    """Take on the caller's files, variables, directory and arguments."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        direct = name == "stderr" or "PYTHONUNBUFFERED" in variables
        buffered = open(number, "rb" if name == "stdin" else "wb", closefd=False)  # noqa: SIM115 - as long as it runs
        text = type(sys.stdout)(buffered, line_buffering=os.isatty(number) or direct, write_through=direct)
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(directory)
    first = directory if arguments[0] in ("-m", "-c") else str(Path(arguments[0]).resolve().parent)
    sys.path[:] = [first, *variables.get("PYTHONPATH", "").split(os.pathsep), *sys.path[1:]]
    sys.argv[:] = (
        arguments[1:] if arguments[0] == "-m" else arguments[:1] + arguments[2:] if arguments[0] == "-c" else arguments
    )


def _run(arguments: list[str]) -> None:
    if arguments[0] == "-m":
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(arguments[1], vars(main))
    else:
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    listening = socket.socket(fileno=int(sys.argv[1]))
    for module in sys.argv[2:]:
        importlib.import_module(module)
    given, (words, where, names) = _serve(listening)
    _become(given, words, where, names)
    _run(words)
