"""Values stream through a row of PEs, each of which adds a term of its own."""

from pathlib import Path

import numpy as np

import openwafer.sdk as wafer

WIDTH, NUM_VALUES = 6, 100

terms = np.arange(1, WIDTH + 1, dtype=np.float32)
values = np.linspace(-1, 1, NUM_VALUES, dtype=np.float32)

program = wafer.compile(Path(__file__).with_name("layout.csl"), params={"width": WIDTH})
with program.run() as run:
    run["term", 0] = terms[:, np.newaxis]
    before = run.cycles
    run.send("MEMCPYH2D_1", values[np.newaxis, np.newaxis], columns=0)
    result = run.receive("MEMCPYD2H_1", NUM_VALUES, np.float32, columns=-1)[0, 0]
    cycles = run.cycles - before

np.testing.assert_allclose(result, values + terms.sum(), rtol=1e-6)
print(f"{NUM_VALUES} values through {WIDTH} PEs: {cycles / NUM_VALUES:.1f} cycles a value")
