"""Random networks, drawn so that they shrink: each color has a sender and a tree of routes."""

from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass, field
from random import Random

import numpy as np
from hypothesis import strategies as st

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.fabric import Simulator, SimulatorOptions
from openwafer.sdk.program import mailbox as mb
from openwafer.sdk.program.image import QueueBinding
from openwafer.sdk.program.routing import ColorConfig
from tests.sdk.fabric.python_code import Pe, PythonCode, Task, fabin, fabout, image, mem1d, program

Place = tuple[int, int]
Code = Generator[None, None, None]
RAMP = 16
STEPS = {1: (-1, 0), 2: (1, 0), 4: (0, 1), 8: (0, -1)}
OPPOSITE = {1: 2, 2: 1, 4: 8, 8: 4, 16: 16}
LINKS = {1: "W", 2: "E", 4: "S", 8: "N", 16: "R"}
SENT, RECEIVED, AREA = 1000, 3000, 200
MAX_COLORS = 5


@dataclass
class Tree:
    """The way of one color.

    Attributes:
        entry: for each place the direction that wavelets come from; RAMP at the source.
        outputs: mask of directions that they leave to.
        words: 32-bit words that the source sends.
        pieces: lengths of the operations that send them.
    """

    color: int
    source: Place
    entry: dict[Place, int]
    outputs: dict[Place, int]
    words: list[int]
    pieces: list[int]

    @property
    def receivers(self) -> list[Place]:
        """Places whose core takes the words."""
        return [place for place, mask in self.outputs.items() if mask & RAMP]

    @property
    def links(self) -> list[tuple[Place, Place]]:
        """Every place and the one before it."""
        found = []
        for (x, y), side in self.entry.items():
            if side != RAMP:
                step = STEPS[side]
                found.append(((x, y), (x + step[0], y + step[1])))
        return found


@dataclass
class Network:
    """Trees on a rectangle, and how long each PE works before each of its operations."""

    width: int
    height: int
    trees: list[Tree]
    delays: dict[tuple[Place, int], int] = field(default_factory=dict)


def random_network(random: Random) -> Network:
    """A network of up to five colors."""
    width, height = random.randrange(2, 6), random.randrange(1, 5)
    colors = random.sample(range(20), random.randrange(1, MAX_COLORS + 1))
    trees = [_random_tree(random, color, width, height) for color in colors]
    network = Network(width, height, trees)
    slowest = random.choice((0, 30, 300))
    for tree in trees:
        for place in tree.entry:
            network.delays[place, tree.color] = random.randrange(slowest + 1)
    return network


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Random networks that shrink and are shown."""
    return random_network(draw(st.randoms(use_true_random=False)))


def _random_tree(random: Random, color: int, width: int, height: int) -> Tree:
    source = random.randrange(width), random.randrange(height)
    entry, outputs = {source: RAMP}, {source: 0}
    for _ in range(random.randrange(1, 12)):
        place, side = random.choice(list(entry)), random.choice(list(STEPS))
        other = place[0] + STEPS[side][0], place[1] + STEPS[side][1]
        if other in entry or not (0 <= other[0] < width and 0 <= other[1] < height):
            continue
        outputs[place] |= side
        entry[other], outputs[other] = OPPOSITE[side], 0
    for place in entry:
        if place != source and (outputs[place] == 0 or random.randrange(10) > 6):
            outputs[place] |= RAMP
    pieces = (
        [random.randrange(1, 13) for _ in range(random.randrange(1, 4))] if outputs[source] else []
    )
    words = [_word(color, number) for number in range(sum(pieces))]
    return Tree(color, source, entry, outputs, words, pieces)


def _word(color: int, number: int) -> int:
    """32 bits that no other place of any color has."""
    return (color * AREA + number) * 0x9E3779B1 & 0xFFFFFFFF


def _operation(tree: Tree, number: int, place: Place) -> list[tuple[str, tuple[object, ...]]]:
    """Requests of a PE for one color, as microthread and queue of its number."""
    if place != tree.source:
        length = len(tree.words)
        target = mem1d(RECEIVED + AREA * number, length, 2, 2)
        return [("mov32", (target, fabin(tree.color, length, number)))]
    requests: list[tuple[str, tuple[object, ...]]] = []
    start = SENT + AREA * number
    for piece in tree.pieces:
        out = fabout(tree.color, piece, number)
        requests.append(("mov32", (out, mem1d(start, piece, 2, 2))))
        start += 2 * piece
    return requests


def _code(network: Network, place: Place) -> Task:
    def main(pe: Pe) -> Code:
        for number, tree in enumerate(network.trees):
            takes_part = place == tree.source or place in tree.receivers
            for name, operands in _operation(tree, number, place) if takes_part else ():
                pe.work(network.delays[place, tree.color])
                given = {"options": int(mb.Option.ASYNC), "microthread": number}
                pe.vector(name, *operands, **given)  # type: ignore[arg-type]
                yield
        pe.open_stream()

    return main


def _queues(network: Network, place: Place) -> tuple[QueueBinding, ...]:
    return tuple(
        QueueBinding(place != tree.source, number, tree.color)
        for number, tree in enumerate(network.trees)
        if place == tree.source or place in tree.receivers
    )


def build(network: Network, arch: Arch, options: SimulatorOptions) -> tuple[Simulator, PythonCode]:
    """A machine that has not run, with its words in place and its command started."""
    places = [(x, y) for y in range(network.height) for x in range(network.width)]
    routes: dict[Place, list[tuple[int, ColorConfig]]] = defaultdict(list)
    for tree in network.trees:
        for place, side in tree.entry.items():
            if tree.pieces:
                routes[place].append((tree.color, ColorConfig(side, tree.outputs[place])))
    code = PythonCode(*[[_code(network, place)] for place in places])
    images = [image(f"pe{place}", queues=_queues(network, place)) for place in places]
    grid = np.arange(len(places)).reshape(network.height, network.width).tolist()
    made = program(grid, images, [routes[place] for place in places], arch)
    simulator = code.simulator(made, options)
    for number, tree in enumerate(network.trees):
        words = np.array(tree.words, np.uint32).view(np.uint16)
        simulator.write(*tree.source, SENT + AREA * number, words)
    simulator.start_command([0] * len(places))
    return simulator, code
