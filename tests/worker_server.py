"""Workers of a parallel run are forks of one process, which has collected the tests once.

Each Python that collects all tests takes 20 seconds of the processor, most of them for imports,
and measures the machine once more at its first plan.
"""

import atexit
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NoReturn

import pytest

from tests import forked

STAND_IN: Final = Path(__file__).with_name("worker.py")
STDIN: Final = 0
SECONDS_TO_END: Final = 300.0


class WorkerServer:
    """Runs the server for the process that hands tests out.

    Attributes:
        command: what a worker is started with, in place of Python.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self._folder = TemporaryDirectory(prefix="workers-")
        address = str(Path(self._folder.name, "socket"))
        self.command = shlex.join([sys.executable, "-S", str(STAND_IN), address])
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen()
            number = listener.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(number), *arguments],
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[number],
            )

    def end(self) -> None:
        """Wait for all forks, so that what they cost is counted."""
        self._process.communicate(timeout=SECONDS_TO_END)
        self._folder.cleanup()


def prepare(arguments: Sequence[str]) -> None:
    """Import what the tests of a run import, and find out what each process would."""
    pytest.main([*arguments, "-n0", "--collect-only", "-q"])
    if "openwafer.sdk.fabric.engine" in sys.modules:
        import_module("tests.compiled_code").run_fabric()
    if "openwafer.training.session" in sys.modules:
        import_module("tests.first_run").plan_all()
        forked.share()


def serve(listener: socket.socket) -> None:
    """Fork a worker for each stand-in, until the standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    workers: list[int] = []
    watched: list[socket.socket | int] = [listener, STDIN]
    while STDIN not in select.select(watched, [], [])[0]:
        stand_in, _ = listener.accept()
        _, numbers, _, _ = socket.recv_fds(stand_in, 1, 3)
        sys.stdout.flush()
        if (worker := os.fork()) == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number, given in enumerate(numbers):
                os.dup2(given, number)
                os.close(given)
            exec(eval(sys.stdin.readline()), vars(sys.modules["__main__"]))
            _leave()
        workers.append(worker)
        for given in (stand_in.detach(), *numbers):
            os.close(given)
    for worker in workers:
        os.waitpid(worker, 0)


def _leave() -> NoReturn:
    """End without a second or two in which all objects of the tests are freed."""
    atexit._run_exitfuncs()  # noqa: SLF001 - which a fork that leaves by itself would pass over
    os._exit(0)


if __name__ == "__main__":
    prepare(sys.argv[2:])
    serve(socket.socket(fileno=int(sys.argv[1])))
    _leave()
