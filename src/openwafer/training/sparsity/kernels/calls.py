"""Products of a walk with activations, on tensors of contiguous 32-bit floats on the CPU."""

from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from openwafer.training.sparsity.kernels import entries
from openwafer.training.sparsity.kernels.index import Walk
from openwafer.training.sparsity.kernels.processor import lanes_here, num_threads_of, run
from openwafer.training.sparsity.kernels.vectors import TILE, TILE_BYTES

SHARES_A_THREAD: Final = 4
WORKSPACE_BYTES: Final = 4 << 20


def tiled(plain: Tensor, lanes: int | None = None) -> Tensor:
    """`[tiles, features, 64]`: activations `[tokens, features]`; the last tile filled with 0."""
    tokens, features = plain.shape
    tiles = torch.empty(-(-tokens // TILE), features, TILE)
    record = np.zeros(1, entries.LAYOUT)
    record["tokens"], record["features"] = tokens, features
    record["plain"], record["tiled"] = plain.data_ptr(), tiles.data_ptr()
    num_threads = num_threads_of(len(tiles), tiles.numel())
    run(entries.tile_entry(lanes or lanes_here()[0]), record, len(tiles), num_threads)
    return tiles


def in_order_of_walk(walk: Walk, values: Tensor) -> Tensor:
    """Values in the pattern's order, brought into that of a walk."""
    return _move(entries.move_entry(is_gather=True), walk, values)


def in_order_of_pattern(walk: Walk, values: Tensor) -> Tensor:
    """The reverse."""
    return _move(entries.move_entry(is_gather=False), walk, values)


def _move(entry: Any, walk: Walk, source: Tensor) -> Tensor:
    target = torch.empty_like(source)
    record = np.zeros(1, entries.MOVE)
    record["count"], record["order"] = source.numel(), walk.order.ctypes.data
    record["source"], record["target"] = source.data_ptr(), target.data_ptr()
    num_items = -(-source.numel() // entries.PIECE)
    run(entry, record, num_items, num_threads_of(num_items, source.numel()))
    return target


def multiply(
    walk: Walk,
    values: Tensor,
    tiles: Tensor,
    output: Tensor,
    bias: Tensor,
    lanes: int | None = None,
) -> None:
    """Fill `output [tokens, rows]` with the walked matrix times `tiles [tiles, columns, 64]`.

    Values are in the order of the walk. Each sum begins with the bias, and takes its products in
    ascending order of columns.
    """
    num_items = len(tiles) * walk.num_panels
    num_threads = num_threads_of(num_items, output.shape[0] * values.numel())
    scratch = torch.empty(num_threads, walk.panel_rows, TILE)
    record = np.zeros(1, entries.MULTIPLY)
    _tell_walk(record, walk)
    record["tokens"], record["input"] = output.shape[0], tiles.data_ptr()
    record["values"], record["bias"] = values.data_ptr(), bias.data_ptr()
    record["scratch"], record["output"] = scratch.data_ptr(), output.data_ptr()
    run(entries.multiply_entry(lanes or lanes_here()[0]), record, num_items, num_threads)


def sample(
    walk: Walk, tiles: Tensor, gradient_tiles: Tensor, totals: Tensor, lanes: int | None = None
) -> None:
    """Add to `totals [num_kept]` what `gradient.T @ input` has at kept positions.

    Totals are in the order of the walk. Each takes the tiles of 64 tokens from the first on.
    """
    num_threads = num_threads_of(walk.rows.size, len(tiles) * TILE * totals.numel())
    shares = _shares(walk, num_threads)
    record = np.zeros(1, entries.SAMPLE)
    _tell_walk(record, walk)
    record["tiles"], record["totals"] = len(tiles), totals.data_ptr()
    record["input"], record["gradient"] = tiles.data_ptr(), gradient_tiles.data_ptr()
    record["shares"] = shares.ctypes.data
    run(entries.sample_entry(lanes or lanes_here()[0]), record, len(shares), num_threads)


def forward(
    walk: Walk, values: Tensor, inputs: Tensor, bias: Tensor | None, lanes: int | None = None
) -> Tensor:
    """`[tokens, rows]`: the walked matrix times `inputs [tokens, columns]`, plus bias.

    Values are in the order of the pattern. Tokens are tiled some at a time, in little memory.
    """
    output = torch.empty(len(inputs), walk.shape[0])
    begun = zeros(walk.shape[0]) if bias is None else floats(bias)
    ordered = in_order_of_walk(walk, floats(values))
    for some in _tokens_at_a_time(len(inputs), walk.shape[1]):
        multiply(walk, ordered, tiled(floats(inputs[some]), lanes), output[some], begun, lanes)
    return output


def backward(
    walks: tuple[Walk, Walk],
    gradient: Tensor,
    inputs: Tensor | None,
    values: Tensor | None,
    lanes: int | None = None,
) -> list[Tensor]:
    """Gradients of the inputs, if the values are given, and of the values, if the inputs are."""
    walk, transposed = walks
    of_inputs = torch.empty(len(gradient) if values is not None else 0, walk.shape[1])
    totals, begun = zeros(walk.columns.size), zeros(walk.shape[1])
    ordered = None if values is None else in_order_of_walk(transposed, floats(values))
    for some in _tokens_at_a_time(len(gradient), sum(walk.shape)):
        tiles = tiled(floats(gradient[some]), lanes)
        if ordered is not None:
            multiply(transposed, ordered, tiles, of_inputs[some], begun, lanes)
        if inputs is not None:
            sample(walk, tiled(floats(inputs[some]), lanes), tiles, totals, lanes)
    gradients = [] if values is None else [of_inputs]
    return gradients if inputs is None else [*gradients, in_order_of_pattern(walk, totals)]


def floats(tensor: Tensor) -> Tensor:
    """The numbers in the format and layout that the products take."""
    return tensor.detach().float().contiguous()


def zeros(count: int) -> Tensor:
    """So many; `torch.zeros` sets them by all threads, and waits for those that share a core."""
    return torch.from_numpy(np.zeros(count, np.float32))


def _tokens_at_a_time(num_tokens: int, features: int) -> list[slice]:
    """Tokens whose tiles fit the outer cache, but enough for all threads."""
    tiles = max(2 * torch.get_num_threads(), WORKSPACE_BYTES // (TILE_BYTES * max(1, features)))
    return [slice(first, first + tiles * TILE) for first in range(0, num_tokens, tiles * TILE)]


def _shares(walk: Walk, num_threads: int) -> NDArray[np.int64]:
    """Shares of the walk in items: blocks of a panel, or parts of a block where there are few."""
    wanted = 1 if num_threads == 1 else -(-SHARES_A_THREAD * num_threads // walk.num_panels)
    ranges = min(wanted, walk.num_blocks)
    parts = -(-wanted // ranges)
    bounds = [walk.num_blocks * n // ranges for n in range(ranges + 1)]
    return np.array(
        [
            (panel, bounds[n], bounds[n + 1], part, parts)
            for panel in range(walk.num_panels)
            for n in range(ranges)
            for part in range(parts)
        ],
        np.int64,
    )


def _tell_walk(record: NDArray[np.void], walk: Walk) -> None:
    record["rows"], record["columns"] = walk.shape
    record["panel_rows"], record["block_columns"] = walk.panel_rows, walk.block_columns
    record["panels"], record["blocks"] = walk.num_panels, walk.num_blocks
    record["block_starts"], record["starts"] = (
        walk.block_starts.ctypes.data,
        walk.starts.ctypes.data,
    )
    record["segment_rows"], record["walked"] = walk.rows.ctypes.data, walk.columns.ctypes.data
