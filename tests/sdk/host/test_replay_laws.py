"""At any cycle of any run a replay in another process has the state that the run had."""

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest

import openwafer.sdk as wafer
from openwafer.sdk.fabric import Simulator
from openwafer.sdk.host import DataType, Region, Runtime, RuntimeOptions
from openwafer.sdk.host.replaying import replay
from openwafer.sdk.program.program import Program
from tests.sdk.door.small_program import small_program
from tests.sdk.forked_python import with_sdk

AGAIN = """
import json, sys
from pathlib import Path
from tests.sdk.host.test_replay_laws import states_again
print(json.dumps(states_again(Path(sys.argv[1]), json.loads(sys.argv[2]))))
"""


def digest(simulator: Simulator) -> str:
    """A word for the whole state of the fabric, and for what PEs have printed."""
    return f"{simulator.snapshot().machine.digest()} {len(simulator.prints())}"


def ask(random: Random, runtime: Runtime) -> None:
    """Ask for something that the program can do, at random."""
    width, height = runtime.program.width, runtime.program.height
    x, y = random.randrange(width), random.randrange(height)
    region = Region(x, y, random.randint(1, width - x), random.randint(1, height - y), 2)
    words = np.array([random.getrandbits(30) for _ in range(int(np.prod(region.shape)))], np.uint32)
    words = words.reshape(region.shape)
    nonblock, number = random.random() < 0.5, runtime.get_id("single")
    match random.randrange(5):
        case 0:
            runtime.copy_to_device(number, words, region, nonblock=nonblock)
        case 1:
            runtime.copy_from_device(lambda _: None, number, region, DataType.BITS_16, nonblock)
        case 2:
            runtime.launch("add", random.uniform(-9, 9), random.randint(-9, 9), nonblock=nonblock)
        case 3:
            runtime.send(4, words, region, nonblock=True)
            runtime.receive(lambda _: None, 5, region, nonblock=nonblock)
        case _:
            runtime.wait()


def states_of_run(random: Random, program: Program, journal: Path) -> dict[int, str]:
    """Digests by cycle of a run of a random script."""
    runtime = Runtime(program, RuntimeOptions(log_folder=None, journal=journal))
    runtime.load()
    runtime.run()
    states: dict[int, str] = {}

    def look(simulator: Simulator) -> None:
        states[simulator.cycle] = digest(simulator)

    for _ in range(10):
        runtime.look_at(runtime.cycle + random.randint(1, 60), look)
        ask(random, runtime)
    runtime.stop()
    return states


def states_again(folder: Path, cycles: list[int]) -> list[str]:
    """The same of a replay for each cycle."""
    program = wafer.load(folder).program
    return [
        digest(replay(program, folder / "run.journal", until=cycle).simulator) for cycle in cycles
    ]


def compare(seed: int, folder: Path) -> int:
    """Compare a random run with its replays; gives the number of points."""
    random = Random(seed)
    compiled = small_program(folder, random.randint(1, 3), random.randint(1, 3))
    compiled.save(folder)
    states = states_of_run(random, compiled.program, folder / "run.journal")
    cycles = json.dumps(list(states))
    done = with_sdk().run(AGAIN, str(folder), cycles, folder=folder)
    assert json.loads(done.stdout or done.stderr) == list(states.values())
    return len(states)


def test_a_replay_has_the_states_of_the_run_at_8_points(tmp_path: Path) -> None:
    folders = [tmp_path / str(seed) for seed in range(2)]
    for folder in folders:
        folder.mkdir()
    assert sum(compare(seed, folder) for seed, folder in enumerate(folders)) >= 8


@pytest.mark.slow
def test_a_replay_has_the_states_of_the_run_at_1000_points(tmp_path: Path) -> None:
    num_points, seed = 0, 100
    while num_points < 1000:
        folder = tmp_path / str(seed)
        folder.mkdir()
        num_points += compare(seed, folder)
        seed += 1
