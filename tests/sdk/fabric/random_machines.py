"""Machines with random routes and random PE code, and all that can be seen of a run.

Each color is a walk over PEs: the first one sends, the last one and some on the way receive.
Switches, filters, control wavelets, slow receivers and streams from and to the host come in at
random; a run may end well, wait for ever, or stop with an error.
"""

import hashlib
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.fabric import Simulator, SimulatorOptions
from openwafer.sdk.program import mailbox as mb
from openwafer.sdk.program.image import QueueBinding, TaskBinding, TaskKind
from openwafer.sdk.program.routing import (
    ColorConfig,
    Filter,
    FilterKind,
    PopMode,
    Switches,
    SwitchPosition,
)
from tests.sdk.fabric.python_code import Pe, PythonCode, fabin, fabout, image, mem1d, program

Code = Generator[None, None, None]
Place = tuple[int, int]
STEPS = {1: (-1, 0), 2: (1, 0), 4: (0, 1), 8: (0, -1)}
OPPOSITE = {1: 2, 2: 1, 4: 8, 8: 4}
RAMP = 16
COMMANDS = (0x095F9249, 0x099F9249, 0x015F9249, 0x0A5F9249)
TO_HOST, FROM_HOST = 22, 23
RECEIVED = 9
CYCLES = 6000


@dataclass
class Draft:
    """What one PE gets."""

    routes: dict[int, ColorConfig] = field(default_factory=dict)
    sends: list[tuple[int, int, bool]] = field(default_factory=list)
    receives: dict[int, int] = field(default_factory=dict)
    data_colors: list[int] = field(default_factory=list)
    delay: int = 0


@dataclass(frozen=True)
class Trace:
    """All that can be seen of a run."""

    cycles: int
    end: str
    landings: tuple[Any, ...]
    statistics: Any
    memory: str
    to_host: tuple[int, ...]


def random_machine(seed: int, options: SimulatorOptions) -> tuple[Simulator, PythonCode]:
    """A machine that is ready to run."""
    rng = Random(seed)
    arch = rng.choice(list(Arch))
    width, height = rng.randint(1, 5), rng.randint(2, 7)
    places = [(x, y) for y in range(height) for x in range(width)]
    drafts = {place: Draft(delay=rng.choice([0, 0, 300])) for place in places}
    for color in rng.choices(range(8), k=rng.randint(1, 7)):
        _add_color(rng, drafts, color)
    for place in rng.sample(sorted(drafts), 1 + len(drafts) // 4):
        _connect_host(drafts[place])
    images = [_image(arch, drafts[place]) for place in places]
    routes = [tuple(drafts[place].routes.items()) for place in places]
    code = PythonCode(*[_entries(drafts[place]) for place in places])
    grid = np.arange(width * height).reshape(height, width).tolist()
    streams = (("MEMCPYD2H_1", TO_HOST), ("MEMCPYH2D_1", FROM_HOST))
    simulator = code.simulator(program(grid, images, routes, arch, streams), options)
    for (x, y), draft in drafts.items():
        simulator.write(x, y, 1000, np.arange(500, dtype=np.uint16) + 1000 * x + 7000 * y)
        if FROM_HOST in draft.receives:
            words = np.arange(draft.receives[FROM_HOST], dtype=np.uint32)
            simulator.inject(FROM_HOST, x, y, words)
    simulator.start_command([0] * len(images))
    return simulator, code


def trace_of(seed: int, options: SimulatorOptions) -> Trace:
    """Run a random machine to its end."""
    simulator, _code = random_machine(seed, replace(options, landing_log=True))
    try:
        end = str(simulator.run_until_idle(CYCLES))
        simulator.run_until_command_done()
    except OpenwaferError as stop:
        end = str(stop)
    width, height = simulator.size
    memory = hashlib.sha256()
    to_host: list[int] = []
    for y in range(height):
        for x in range(width):
            memory.update(simulator.read(x, y, 0, 4000).tobytes())
            num = simulator.num_collected(TO_HOST, x, y)
            to_host += simulator.take(TO_HOST, x, y, num).tolist()
    return Trace(
        simulator.cycle,
        end,
        simulator.landings(),
        simulator.statistics(),
        memory.hexdigest(),
        tuple(to_host),
    )


def _add_color(rng: Random, drafts: dict[Place, Draft], color: int) -> None:
    walk = _walk(rng, drafts)
    length, is_slow = rng.randint(1, 40), rng.random() < 0.3
    for number, place in enumerate(walk):
        came = RAMP if number == 0 else _direction(place, walk[number - 1])
        goes = RAMP if number + 1 == len(walk) else _direction(place, walk[number + 1])
        draft = drafts[place]
        if number and rng.random() < 0.25:
            goes |= RAMP
        before = draft.routes.get(color, ColorConfig(0, 0))
        draft.routes[color] = _config(rng, came | before.rx, goes)
        if goes & RAMP and number:
            draft.receives[color] = length if rng.random() < 0.9 else length + 3
            if rng.random() < 0.3:
                draft.data_colors.append(color)
            draft.delay += 500 * is_slow
    sends = drafts[walk[0]].sends
    while length > 0:
        part = rng.randint(1, length)
        sends.append((color, part, False))
        if rng.random() < 0.4:
            sends.append((color, rng.choice(COMMANDS), True))
        length -= part
    rng.shuffle(sends)


def _walk(rng: Random, drafts: dict[Place, Draft]) -> list[Place]:
    walk = [rng.choice(sorted(drafts))]
    for _ in range(rng.randint(1, 10)):
        near = [(walk[-1][0] + dx, walk[-1][1] + dy) for dx, dy in STEPS.values()]
        free = [place for place in near if place in drafts and place not in walk]
        if not free:
            break
        walk.append(rng.choice(free))
    return walk


def _direction(place: Place, other: Place) -> int:
    step = (other[0] - place[0], other[1] - place[1])
    return next(direction for direction, own in STEPS.items() if own == step)


def _config(rng: Random, came: int, goes: int) -> ColorConfig:
    switches, filtered = None, None
    if rng.random() < 0.3:
        change = rng.choice([{"tx": RAMP}, {"tx": goes}, {"rx": came | RAMP}, {"rx": RAMP}])
        pop = rng.choice(list(PopMode))
        switches = Switches((SwitchPosition(**change),), 0, rng.random() < 0.7, pop)
    if goes & RAMP and rng.random() < 0.15:
        filtered = Filter(FilterKind.COUNTER, True, limit1=rng.randint(1, 3), max_counter=1)
    swaps = {"swap_x": rng.random() < 0.04, "swap_y": rng.random() < 0.04}
    return ColorConfig(came, goes, switches, filtered, **swaps)


def _connect_host(draft: Draft) -> None:
    if len(draft.receives) < 4:
        draft.receives[FROM_HOST] = 30
    draft.sends.append((TO_HOST, 20, False))


def _image(arch: Arch, draft: Draft) -> Any:
    queues = [QueueBinding(True, 7 - k, color) for k, color in enumerate(draft.receives)]
    if arch is Arch.WSE3:
        sent = dict.fromkeys(color for color, _, _ in draft.sends)
        queues += [QueueBinding(False, k, color) for k, color in enumerate(sent)]
    tasks = [TaskBinding(TaskKind.LOCAL, RECEIVED, 1)]
    for queue, color in enumerate(draft.receives):
        if color in draft.data_colors:
            task_id = 7 - queue if arch is Arch.WSE3 else color
            tasks.append(TaskBinding(TaskKind.DATA, task_id, 2))
    return image(queues=tuple(queues), tasks=tuple(tasks))


def _entries(draft: Draft) -> list[Any]:
    sent = list(dict.fromkeys(color for color, _, _ in draft.sends))
    options = int(mb.Option.ASYNC)

    def start(pe: Pe) -> Code:
        pe.work(draft.delay)
        for k, (color, length) in enumerate(draft.receives.items()):
            if color in draft.data_colors:
                continue
            to = mem1d(100 + 120 * k, length, 2, 2)
            given = {"options": options, "activate": RECEIVED, "microthread": 7 - k}
            pe.vector("mov32" if k % 2 else "fmovs", to, fabin(color, length, 7 - k), **given)
            yield
        for k, (color, what, is_control) in enumerate(draft.sends):
            queue = sent.index(color) % 6
            if is_control:
                pe.vector("mov32", fabout(color, 1, queue, 8), what)
            else:
                given = {"options": options, "microthread": k % 2} if k % 3 == 1 else {}
                pe.vector("mov32", fabout(color, what, queue), mem1d(1000, what, 2, 2), **given)
            yield
        pe.open_stream()

    def received(pe: Pe) -> Code:
        pe.memory[3000] += 1
        pe.work(15)
        pe.vector("add16", mem1d(3100, 20), mem1d(3100, 20), mem1d(100, 20))
        yield

    def datum(pe: Pe) -> Code:
        pe.memory[3001] += pe.argument & 0xFF
        pe.work(pe.argument % 40)
        yield from ()

    return [start, received, datum]
