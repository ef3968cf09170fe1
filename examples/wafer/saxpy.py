"""Calls one CSL function on one PE, and compares with numpy. Prints what an element costs."""

from pathlib import Path

import numpy as np

import openwafer.sdk as wafer

FILE = Path(__file__).with_name("saxpy.csl")


def cycles_of(num_elements: int) -> int:
    """Check the function on so many elements; return its cycles."""
    x = np.linspace(0, 1, num_elements, dtype=np.float32)
    y = np.ones(num_elements, np.float32)
    called = wafer.call(FILE, "saxpy", 2.0, num_elements, x, y)
    np.testing.assert_allclose(called.arrays[1], 2 * x + 1, rtol=1e-6)
    return called.cycles


few, many = cycles_of(100), cycles_of(1100)
print(f"{(many - few) / 1000:.2f} cycles an element")
