"""The game of life, a cell on each PE: against numpy, and a few generations as a picture."""

from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

import openwafer.sdk as wafer
from openwafer.cli.pictures import picture
from openwafer.cli.wafer_demos.shown import Check, Line, Shown, by_the_clock
from openwafer.sdk.kernels.running import STRICT, cycles_of, known_arch

SIZE: Final = (40, 60)
PICTURED: Final = (0, 40, 120, 240)
GUN: Final = """
........................O...........
......................O.O...........
............OO......OO............OO
...........O...O....OO............OO
OO........O.....O...OO..............
OO........O...O.OO....O.O...........
..........O.....O.......O...........
...........O...O....................
............OO......................
"""
"""Gosper's gun: it sends off a glider every 30 generations."""

World = NDArray[np.float32]


def run(arch: str) -> Shown:
    """Play from a gun on, and compare each world with numpy's."""
    world = np.zeros(SIZE, np.float32)
    lines = GUN.split()
    world[5 : 5 + len(lines), 3 : 3 + len(lines[0])] = [[c == "O" for c in line] for line in lines]
    worlds, cycles = [world], 0
    for first, last in pairwise(PICTURED):
        played, taken = play(worlds[-1], last - first, arch)
        worlds.append(played)
        cycles += taken
    a_generation = cycles / PICTURED[-1]
    expected = by_numpy(world, PICTURED[-1])
    num_other = int((worlds[-1] != expected).sum())
    figures = (
        Line("PEs, a cell each", f"{SIZE[0]} x {SIZE[1]}"),
        Line("cycles a generation", f"{a_generation:.1f}"),
        Line("the same by the clock, on any rectangle", by_the_clock(a_generation, arch)),
        Line("cells that live", f"{int(worlds[-1].sum())}"),
    )
    check = Check("cells that differ from numpy's", f"{num_other}", "none", num_other == 0)
    return Shown(figures, (check,), lambda file: draw(file, worlds))


def play(world: World, generations: int, arch: str) -> tuple[World, int]:
    """A world after so many generations, and the cycles that they took."""
    layout = Path(__file__).parent / "programs" / "life_layout.csl"
    rows, columns = world.shape
    params = {"rows": rows, "columns": columns}
    program = wafer.compile(layout, arch=arch, params=params, options=STRICT)
    with program.run() as played:
        played["cell"] = world[..., None]
        played.launch("main", generations)
        return played["cell"][..., 0].copy(), cycles_of(played, known_arch(arch))


def by_numpy(world: World, generations: int) -> World:
    """The same by numpy."""
    for _ in range(generations):
        padded = np.pad(world, 1)
        around = sum(
            padded[1 + y : 1 + y + world.shape[0], 1 + x : 1 + x + world.shape[1]]
            for y in (-1, 0, 1)
            for x in (-1, 0, 1)
        )
        nine = np.asarray(around)
        world = np.where(nine == 3, 1, np.where(nine == 4, world, 0)).astype(np.float32)
    return world


def draw(file: Path, worlds: list[World]) -> None:
    """Worlds beside each other."""
    with picture(file, (14.0, 2.8), ncols=len(worlds)) as panels:
        for axes, world, generation in zip(panels, worlds, PICTURED, strict=True):
            axes.imshow(world, cmap="Greys", vmin=0, vmax=1)
            axes.set(title=f"generation {generation}", xticks=[], yticks=[])
