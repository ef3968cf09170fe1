"""Columns as of a long run of busy PEs, without the run."""

import numpy as np

from openwafer.view.columns import Array, Columns
from openwafer.view.programs import THREADS

_THREADS = (9, 8, 0, 1)


def busy_columns(width: int, cycles: int, num_events: int, *, height: int | None = None) -> Columns:
    """PEs, a square by default, each with tasks, operations and microthreads all the time."""
    height = height or width
    num_pes = width * height
    each = num_events // num_pes // len(_THREADS)
    random = np.random.default_rng(0)
    begin = np.sort(random.integers(0, cycles - 10, (num_pes, len(_THREADS), each)), axis=2)
    end = np.concatenate([begin[:, :, 1:], np.full((num_pes, len(_THREADS), 1), cycles)], axis=2)
    thread = np.broadcast_to(np.array(_THREADS)[None, :, None], begin.shape)
    order = np.argsort(begin.reshape(num_pes, -1), axis=1, kind="stable")
    rows = {
        "begin": begin,
        "end": end,
        "thread": thread,
        "name": random.integers(0, 9, begin.shape),
    }
    arrays: dict[str, Array] = {
        f"span.{name}": np.take_along_axis(one.reshape(num_pes, -1), order, axis=1).ravel()
        for name, one in rows.items()
    }
    num = len(arrays["span.begin"])
    arrays |= {"span.place": np.full(num, -1), "span.elements": np.ones(num, np.int64)}
    arrays |= {"span.out": np.full(num, -1)}
    arrays["span.first"] = np.arange(num_pes + 1) * (num // num_pes)
    bins = max(1, min(2048, (1 << 23) // num_pes))
    layers = ("task", "operation", "traffic")
    arrays |= {
        f"course.{name}": random.integers(0, 256, (bins, num_pes), np.uint8) for name in layers
    }
    arrays |= {name: np.zeros(num_pes, np.int64) for name in ("routes_of", "image_of")}
    head = {
        "kind": "wafer", "title": "busy", "program": "", "arch": "wse3", "width": width,
        "height": height, "cycles": cycles, "threads": THREADS, "images": ["pe.csl"], "sources": [],
        "names": [f"name {n}" for n in range(9)], "places": [], "routes": [[[3, 0, [[1, 2]]]]],
        "colors": [[] for _ in range(24)], "host": [],
        "course": {"bin_cycles": -(-(cycles + 1) // bins), "layers": layers},
    }  # fmt: skip
    return Columns(head, arrays)
