"""A kernel on a whole wafer of PEs in memory: its cycles and minutes, and its result checked.

``wave`` is the 25-point stencil of the demonstration on a short column, ``gemv`` a product whose
tiles are small. Both are compared with numpy in float64, within the bound of their plans.

    python benchmarks/bench_wafer_kernels.py gemv --width 750 --height 994
    python benchmarks/bench_wafer_kernels.py wave --width 750 --height 994 --steps 1
"""

import argparse

import numpy as np
from bench_wafer import timed

from openwafer.cli.wafer_demos.wave import shot
from openwafer.sdk import kernels


def wave(rows: int, columns: int, arch: str, steps: int) -> tuple[int, bool]:
    """Cycles of steps with eight cells a PE, and whether all cells are within their bound."""
    shape = (rows, columns, 8)
    stencil = shot(shape, (rows // 2, columns // 2, 4), steps)
    start = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    plan = kernels.plan_stencil(stencil, shape, arch=arch)
    print(f"         planned {plan.cycles(steps)} cycles", flush=True)
    with timed("run"):
        result = plan.run(start, steps)
    with timed("check"):
        off = np.abs(result.values - stencil.applied(start, steps))
        return result.cycles, bool((off <= plan.error_bound(start, steps)).all())


def gemv(rows: int, columns: int, arch: str, _steps: int) -> tuple[int, bool]:
    """Cycles of a product with tiles of 8 x 8, and whether all sums are within their bound."""
    rng = np.random.default_rng(1)
    matrix = rng.normal(size=(8 * rows, 8 * columns)).astype(np.float32)
    vector = rng.normal(size=8 * columns).astype(np.float32)
    plan = kernels.plan_gemv(matrix.shape, (rows, columns), arch=arch)
    print(f"         planned {plan.cycles} cycles", flush=True)
    with timed("run"):
        result = plan.run(matrix, vector)
    with timed("check"):
        off = np.abs(result.values - matrix.astype(np.float64) @ vector.astype(np.float64))
        return result.cycles, bool((off <= plan.error_bound(matrix, vector)).all())


def main() -> None:
    """Run and compare; a result beyond its bound ends with an error."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    kinds = {"wave": wave, "gemv": gemv}
    parser.add_argument("kind", choices=kinds)
    parser.add_argument("--width", type=int, default=64, help="columns; the wafer has 750")
    parser.add_argument("--height", type=int, default=64, help="rows; the wafer has 994")
    parser.add_argument("--arch", default="wse2", choices=["wse2", "wse3"])
    parser.add_argument("--steps", type=int, default=2, help="of the wave")
    arguments = parser.parse_args()
    size = arguments.height, arguments.width
    cycles, is_within = kinds[arguments.kind](*size, arguments.arch, arguments.steps)
    print(f"{arguments.kind} on {arguments.width} x {arguments.height} PEs: {cycles} cycles")
    if not is_within:
        raise SystemExit("the result is beyond its bound")


if __name__ == "__main__":
    main()
