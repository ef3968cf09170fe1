"""Pythons of their own that begin where another one waits, with what they need loaded.

A fork has its own modules, environment, standard streams and exit, as a Python that is started has;
only what it would load first is there. As a program, this module is the one that waits.
"""

import atexit
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
LIBRARIES = "import llvmlite.binding, numba, numpy"
SDK = f"""
{LIBRARIES}
import openwafer.sdk.compat.script
import openwafer.sdk.compat.sdkruntimepybind
import openwafer.sdk.compiler.pipeline
from tests.sdk.fabric.python_code import PythonCode, image, program
PythonCode([]).simulator(program([[0]], [image("idle")])).run_until_idle()
"""


class WaitingPython:
    """A Python that has run some code and forks for each that is asked for."""

    def __init__(self, before: str) -> None:
        line = [sys.executable, "-m", __name__, before]
        self._process = subprocess.Popen(
            line, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        atexit.register(self.close)

    def close(self) -> None:
        """End it."""
        self._process.communicate()

    def run(
        self, code: str, *arguments: str, folder: Path = ROOT
    ) -> subprocess.CompletedProcess[str]:
        """Run code in a folder, with this process's environment, to its end."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with TemporaryDirectory() as said:
            request = code, arguments, str(folder), dict(os.environ), said
            stdin.write(f"{json.dumps(request)}\n")
            stdin.flush()
            returned = int(stdout.readline())
            out, err = (Path(said, name).read_text("utf-8") for name in ("out", "err"))
        return subprocess.CompletedProcess([code, *arguments], returned, out, err)

    def run_module(
        self, module: str, *arguments: str, folder: Path
    ) -> subprocess.CompletedProcess[str]:
        """Run what ``python -m`` runs."""
        code = f"import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
        return self.run(code, *arguments, folder=folder)

    def run_script(
        self, script: str, *arguments: str, folder: Path
    ) -> subprocess.CompletedProcess[str]:
        """Run a file as ``python`` does."""
        code = f"import runpy; runpy.run_path({script!r}, run_name='__main__')"
        return self.run(code, *arguments, folder=folder)


@cache
def with_libraries() -> WaitingPython:
    """With the packages of others that the SDK needs."""
    return WaitingPython(LIBRARIES)


@cache
def with_sdk() -> WaitingPython:
    """With the compiler, the runtime and the compiled simulator."""
    return WaitingPython(SDK)


def _become(arguments: list[str], folder: str, environment: dict[str, str], said: str) -> None:
    """Take the surroundings of the program that this fork is."""
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(Path(said, name), os.O_WRONLY | os.O_CREAT), number)
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 (it stays open to the end)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["-c", *arguments]
    sys.path[0] = folder


def _wait(before: str) -> None:
    exec(before, {"__name__": "before"})
    answers = os.dup(1)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os.close(answers)
            code, *surroundings = json.loads(line)
            _become(*surroundings)
            exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})
            return
        _, status = os.waitpid(child, 0)
        os.write(answers, f"{os.waitstatus_to_exitcode(status)}\n".encode())


if __name__ == "__main__":
    _wait(sys.argv[1])
