"""Demonstrations on the simulated wafer: each runs a program, checks its physics and draws it."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Final

from openwafer.cli.tables import plain_console
from openwafer.cli.wafer_demos.shown import Shown
from openwafer.diagnostics import error

DEMOS: Final = {
    "copper": "molecular dynamics of copper by an embedded-atom potential: an atom on each PE",
    "fluid": "a cavity with a moving lid by lattice Boltzmann: a cell on each PE",
    "heat": "heat in a plate: a 5-point stencil, a cell on each PE",
    "life": "the game of life: a cell on each PE, eight neighbours by four messages",
    "lookup": "cross-sections for Monte Carlo transport: particles are sorted to bands of energy",
    "porous": "flow through a porous medium: conjugate gradients without a matrix",
    "tlr": "a seismic operator of tiles of low rank times a wavefield",
    "wave": "a seismic shot: a 25-point stencil, a column of cells on each PE",
}
"""Name to what is shown. Each is a module of this name with ``run(arch)``."""


def run_demo(name: str, folder: Path, arch: str) -> bool:
    """Run a demonstration, print its figures and draw its picture.

    Args:
        name: one of :data:`DEMOS`.
        folder: gets ``NAME.png``; it is made.
        arch: ``"wse2"`` or ``"wse3"``.

    Returns:
        Whether all its checks hold.

    Raises:
        OpenwaferError: there is no such demonstration or generation.
    """
    if name not in DEMOS:
        known = ", ".join(DEMOS)
        raise error("option-value", f"no demonstration {name!r}", help=f"give one of {known}")
    run: Callable[[str], Shown] = import_module(f"{__name__}.{name}").run
    shown = run(arch)
    console = plain_console()
    for figure in shown.figures:
        console.print(f"{figure.what:<44} {figure.value}", highlight=False, soft_wrap=True)
    for check in shown.checks:
        word = "holds" if check.holds else "FAILS"
        text = f"{check.what:<44} {check.value}  {word}: {check.wanted}"
        console.print(text, highlight=False, soft_wrap=True)
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / f"{name}.png"
    shown.draw(picture)
    console.print(f"{'picture':<44} {picture}", highlight=False, soft_wrap=True)
    return all(check.holds for check in shown.checks)
