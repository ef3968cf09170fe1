"""Machines with random routes and random PE code, and all that can be seen of a run.

Each color is a walk over PEs: the first one sends, the last one and some on the way receive.
Switches, filters, control wavelets, slow receivers, streams from and to the host and ports at the
edge come in at random; a run may end well, wait for ever, or stop with an error. A machine is drawn
so that it shrinks: the first choice of everything is the plainest.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.fabric import Edge, Port, Scope, Side, Simulator, SimulatorOptions
from openwafer.sdk.program.image import QueueBinding, Symbol, TaskBinding, TaskKind
from openwafer.sdk.program.routing import (
    ColorConfig,
    Filter,
    FilterKind,
    PopMode,
    Switches,
    SwitchPosition,
)
from tests.sdk.fabric.noted import Noted
from tests.sdk.fabric.python_code import PythonCode, image, program
from tests.sdk.fabric.random_code import (
    COMMANDS,
    FROM_HOST,
    PASSED_ON,
    RECEIVED,
    RECEIVES,
    SENDS,
    TABLE,
    TABLE_WORDS,
    TO_HOST,
    Receive,
    Send,
    entries,
    registers,
)

Place = tuple[int, int]
STEPS = {1: (-1, 0), 2: (1, 0), 4: (0, 1), 8: (0, -1)}
RAMP = 16
CYCLES = 6000
VARIABLES = (Symbol("received", 100, 900, "u16"), Symbol("table", TABLE, TABLE_WORDS, "u16"))


@dataclass
class Draft:
    """What one PE gets; `receives` and `data_colors` are by color."""

    routes: dict[int, ColorConfig] = field(default_factory=dict)
    sends: list[Send] = field(default_factory=list)
    receives: dict[int, Receive] = field(default_factory=dict)
    data_colors: list[int] = field(default_factory=list)
    delay: int = 0


@dataclass(frozen=True)
class Stream:
    """Wavelets, 33 bits each, that enter through a port on a color, or leave by it."""

    port: Port
    color: int
    wavelets: tuple[int, ...] = ()


@dataclass(frozen=True)
class Machine:
    """A rectangle of PEs."""

    arch: Arch
    width: int
    height: int
    drafts: dict[Place, Draft]
    streams: tuple[Stream, ...] = ()


@dataclass(frozen=True)
class Trace:
    """All that can be seen of a run."""

    cycles: int
    end: str
    landings: tuple[Any, ...]
    statistics: Any
    account: str
    memory: str
    to_host: tuple[int, ...]
    told: tuple[str, ...]
    events: str


def random_machine(random: Random) -> Machine:
    """A machine of up to 35 PEs and seven colors."""
    arch = random.choice(list(Arch))
    width, height = random.randint(1, 5), random.randint(2, 7)
    places = [(x, y) for y in range(height) for x in range(width)]
    drafts = {place: Draft(delay=300 * _happens(random, 30)) for place in places}
    for color in random.choices(range(8), k=random.randint(1, 7)):
        _add_color(random, drafts, color)
    for place in random.sample(places, random.randint(0, 1 + len(places) // 4)):
        _connect_host(drafts[place])
    machine = Machine(arch, width, height, drafts)
    used: set[tuple[Place, Side]] = set()
    for color in range(8, 8 + random.randint(0, 3)):
        machine = _with_stream(random, machine, color, used)
    return machine


def untimed_machine(random: Random) -> Machine:
    """One whose words do not depend on when others come.

    Each color has one sender, which sends by one operation, and one receiver of its own in each PE.
    Nothing switches, filters or ends a stream. How often tasks run still depends on time, as a task
    that is activated twice before it starts runs once.
    """
    arch = random.choice(list(Arch))
    width, height = random.randint(1, 5), random.randint(1, 5)
    drafts = {(x, y): Draft() for y in range(height) for x in range(width)}
    for color in random.sample(range(6), random.randint(0, 3)):
        _add_color(random, drafts, color)
    for place in random.sample(list(drafts), random.randint(1, len(drafts))):
        _connect_host(drafts[place])
    for draft in drafts.values():
        words = Counter[int]()
        for send in draft.sends:
            words[send.color] += send.what * (send.kind != "control")
        draft.sends = [Send(color, "words", length) for color, length in words.items()]
        draft.routes = {
            color: ColorConfig(config.rx, config.tx) for color, config in draft.routes.items()
        }
    return Machine(arch, width, height, drafts)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Random machines that shrink and are shown."""
    return random_machine(draw(st.randoms(use_true_random=False)))


def build(machine: Machine, options: SimulatorOptions) -> tuple[Simulator, PythonCode]:
    """A machine that is ready to run."""
    drafts = machine.drafts
    images = [_image(machine.arch, draft) for draft in drafts.values()]
    routes = [tuple(draft.routes.items()) for draft in drafts.values()]
    code = PythonCode(
        *[entries(d.sends, d.receives, d.data_colors, d.delay) for d in drafts.values()]
    )
    grid = np.arange(len(drafts)).reshape(machine.height, machine.width).tolist()
    streams = (("MEMCPYD2H_1", TO_HOST), ("MEMCPYH2D_1", FROM_HOST))
    options = replace(options, edge=Edge(tuple(stream.port for stream in machine.streams)))
    simulator = code.simulator(program(grid, images, routes, machine.arch, streams), options)
    for stream in machine.streams:
        wavelets = np.array(stream.wavelets, np.int64)
        simulator.send_to_port(stream.port, stream.color, wavelets)
    for (x, y), draft in drafts.items():
        table = np.arange(TABLE_WORDS, dtype=np.uint16) + 1000 * x + 7000 * y
        simulator.write(x, y, TABLE, table)
        if FROM_HOST in draft.receives:
            words = np.arange(draft.receives[FROM_HOST].length, dtype=np.uint32)
            simulator.inject(FROM_HOST, x, y, words)
    simulator.start_command([0] * len(images))
    return simulator, code


def trace_of(machine: Machine, options: SimulatorOptions) -> Trace:
    """Run a machine to its end."""
    options = replace(options, landing_log=True, has_account=True, scope=Scope())
    simulator, _code = build(machine, options)
    noted = Noted(simulator)
    try:
        end = str(simulator.run_until_idle(CYCLES))
        simulator.run_until_command_done()
    except OpenwaferError as stop:
        end = str(stop)
    memory = hashlib.sha256()
    to_host: list[int] = []
    for x, y in machine.drafts:
        memory.update(simulator.read(x, y, 0, 4000).tobytes())
        num = simulator.num_collected(TO_HOST, x, y)
        to_host += simulator.take(TO_HOST, x, y, num).tolist()
    return Trace(
        simulator.cycle,
        end,
        simulator.landings(),
        simulator.statistics(),
        hashlib.sha256(simulator.account().cycles.tobytes()).hexdigest(),
        memory.hexdigest(),
        tuple(to_host),
        tuple(str(one) for one in simulator.findings()),
        hashlib.sha256(str(noted.lists()).encode()).hexdigest(),
    )


def _happens(random: Random, percent: int) -> bool:
    """True in that part of cases; what is drawn shrinks to false."""
    return random.randrange(100) >= 100 - percent


def _add_color(random: Random, drafts: dict[Place, Draft], color: int) -> None:
    walk = _walk(random, drafts)
    length, is_slow = random.randint(1, 40), _happens(random, 30)
    for number, place in enumerate(walk):
        came = RAMP if number == 0 else _direction(place, walk[number - 1])
        goes = RAMP if number + 1 == len(walk) else _direction(place, walk[number + 1])
        draft = drafts[place]
        if number and _happens(random, 25):
            goes |= RAMP
        before = draft.routes.get(color, ColorConfig(0, 0))
        draft.routes[color] = _config(random, came | before.rx, goes)
        if goes & RAMP and number:
            _receive(random, draft, color, length)
            draft.delay += 500 * is_slow
    sends = drafts[walk[0]].sends
    while length > 0:
        part = random.randint(1, length)
        sends.append(Send(color, random.choice(SENDS), part))
        if _happens(random, 40):
            sends.append(Send(color, "control", random.choice(COMMANDS)))
        length -= part
    random.shuffle(sends)


def _with_stream(
    random: Random, machine: Machine, color: int, used: set[tuple[Place, Side]]
) -> Machine:
    """A color that enters through a port, and leaves by another where its walk ends at an edge."""
    drafts, streams = machine.drafts, list(machine.streams)
    edges = {place: sides for place in drafts if (sides := _free_sides(machine, place, used))}
    if not edges:
        return machine
    start = random.choice(list(edges))
    side = random.choice(edges[start])
    used.add((start, side))
    walk = _walk(random, drafts, start)
    length, came = random.randint(1, 40), 1 << side.direction
    out = random.choice(_free_sides(machine, walk[-1], used) or [None])
    for number, place in enumerate(walk):
        is_last = number + 1 == len(walk)
        end = RAMP if out is None else 1 << out.direction
        goes = end if is_last else _direction(place, walk[number + 1])
        goes |= RAMP * (goes != RAMP and _happens(random, 25))
        drafts[place].routes[color] = _config(random, came, goes)
        if goes & RAMP:
            _receive(random, drafts[place], color, length)
        came = 0 if is_last else _direction(walk[number + 1], place)
    rates = [None, 1.0, 0.75, 0.3, 1 / 7]
    name = f"{len(streams)}"
    given = Port(name, *start, side, into=(color,), rate=random.choice(rates))
    streams.append(Stream(given, color, _wavelets(random, length)))
    if out is not None:
        used.add((walk[-1], out))
        rate = random.choice(rates)
        streams.append(Stream(Port(f"{name} out", *walk[-1], out, out=(color,), rate=rate), color))
    return replace(machine, streams=tuple(streams))


def _free_sides(machine: Machine, place: Place, used: set[tuple[Place, Side]]) -> list[Side]:
    x, y = place
    at_edge = {
        Side.WEST: x == 0,
        Side.EAST: x == machine.width - 1,
        Side.SOUTH: y == machine.height - 1,
        Side.NORTH: y == 0,
    }
    return [side for side, is_edge in at_edge.items() if is_edge and (place, side) not in used]


def _wavelets(random: Random, length: int) -> tuple[int, ...]:
    """Words, and now and then a command."""
    controls = [1 << 32 | command for command in COMMANDS]
    return tuple(
        random.choice(controls) if _happens(random, 5) else random.getrandbits(32)
        for _ in range(length)
    )


def _receive(random: Random, draft: Draft, color: int, length: int) -> None:
    length += 3 * _happens(random, 10)
    priority, ends = random.randint(-1, 2), _happens(random, 20)
    draft.receives[color] = Receive(random.choice(RECEIVES), length, priority, ends)
    if _happens(random, 30):
        draft.data_colors.append(color)


def _walk(random: Random, drafts: dict[Place, Draft], start: Place | None = None) -> list[Place]:
    walk = [random.choice(list(drafts)) if start is None else start]
    for _ in range(random.randint(1, 10)):
        near = [(walk[-1][0] + dx, walk[-1][1] + dy) for dx, dy in STEPS.values()]
        free = [place for place in near if place in drafts and place not in walk]
        if not free:
            break
        walk.append(random.choice(free))
    return walk


def _direction(place: Place, other: Place) -> int:
    step = (other[0] - place[0], other[1] - place[1])
    return next(direction for direction, own in STEPS.items() if own == step)


def _config(random: Random, came: int, goes: int) -> ColorConfig:
    switches, filtered = None, None
    if _happens(random, 30):
        change = random.choice([{"tx": RAMP}, {"tx": goes}, {"rx": came | RAMP}, {"rx": RAMP}])
        pop = random.choice(list(PopMode))
        switches = Switches((SwitchPosition(**change),), 0, _happens(random, 70), pop)
    if goes & RAMP and _happens(random, 15):
        filtered = Filter(FilterKind.COUNTER, True, limit1=random.randint(1, 3), max_counter=1)
    swap = random.randrange(25)
    return ColorConfig(came, goes, switches, filtered, swap_x=swap == 23, swap_y=swap == 24)


def _connect_host(draft: Draft) -> None:
    if len(draft.receives) < 4:
        draft.receives[FROM_HOST] = Receive("words", 30)
    draft.sends.append(Send(TO_HOST, "words", 20))


def _image(arch: Arch, draft: Draft) -> Any:
    queues = [QueueBinding(True, 7 - k, color) for k, color in enumerate(draft.receives)]
    if arch is Arch.WSE3:
        sent = dict.fromkeys(send.color for send in draft.sends)
        queues += [QueueBinding(False, k, color) for k, color in enumerate(sent)]
        queues.append(QueueBinding(False, PASSED_ON, TO_HOST))
    tasks = [TaskBinding(TaskKind.LOCAL, RECEIVED, 1)]
    for k, color in enumerate(draft.receives):
        if color in draft.data_colors:
            task_id = 7 - k if arch is Arch.WSE3 else color
            tasks.append(TaskBinding(TaskKind.DATA, task_id, 2))
    return image(
        queues=tuple(queues),
        tasks=tuple(tasks),
        symbols=VARIABLES,
        dsrs=registers(draft.receives),
    )
