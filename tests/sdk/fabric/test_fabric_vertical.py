from collections.abc import Generator

import numpy as np

from openwafer.sdk.program.image import QueueBinding
from openwafer.sdk.program.routing import ColorConfig
from tests.sdk.fabric.python_code import Pe, PythonCode, fabin, fabout, image, mem1d, program


def test_a_vector_travels_from_one_pe_to_the_next() -> None:
    def send(pe: Pe) -> Generator[None, None, None]:
        pe.vector("mov32", fabout(3, 5, 2), mem1d(10, 5, 2, 2))
        yield
        pe.open_stream()

    def receive(pe: Pe) -> Generator[None, None, None]:
        pe.vector("mov32", mem1d(100, 5, 2, 2), fabin(3, 5, 1))
        yield
        pe.open_stream()

    code = PythonCode([send], [receive])
    routes = [[(3, ColorConfig(16, 2))], [(3, ColorConfig(1, 16))]]
    p = program([[0, 1]], [image("s"), image("r", queues=(QueueBinding(True, 1, 3),))], routes)
    s = code.simulator(p)
    s.write(0, 0, 10, np.arange(10, dtype=np.uint16))
    s.start_command([0, 0])
    s.run_until_command_done()
    assert s.read(1, 0, 100, 10).tolist() == list(range(10))
