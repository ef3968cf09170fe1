"""Heat spreads along a rod that lies on a row of PEs; numpy computes the same."""

from pathlib import Path

import numpy as np

import openwafer.sdk as wafer

WIDTH, CELLS, STEPS, RATE = 8, 16, 200, 0.25

rod = np.zeros(WIDTH * CELLS + 2, np.float32)
rod[0], rod[-1] = 1.0, -1.0  # both ends are held
for_pes = np.stack([rod[x * CELLS : (x + 1) * CELLS + 2] for x in range(WIDTH)])

program = wafer.compile(
    Path(__file__).with_name("layout.csl"), params={"width": WIDTH, "cells": CELLS}
)
with program.run() as run:
    run["rod"] = for_pes[np.newaxis]
    run.launch("run", STEPS, RATE)
    result = run["rod", 0][:, 1:-1].ravel()
    cycles = run.cycles

for _ in range(STEPS):
    rod[1:-1] += RATE * (rod[:-2] - 2 * rod[1:-1] + rod[2:])
np.testing.assert_allclose(result, rod[1:-1], rtol=1e-5, atol=1e-6)
print(f"{STEPS} steps of {WIDTH * CELLS} cells: {cycles / STEPS:.0f} cycles a step")
