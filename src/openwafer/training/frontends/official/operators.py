"""What each operation of a graph means, as operators of torch."""

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Final, TypeAlias

import torch

from openwafer.diagnostics import error
from openwafer.training.frontends.official.graph import (
    Attributes,
    Dense,
    Graph,
    Operation,
    TensorType,
)

Tensors: TypeAlias = Sequence[torch.Tensor]
Meaning: TypeAlias = Callable[[Operation, Tensors], torch.Tensor | tuple[torch.Tensor, ...]]

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "i1": torch.bool, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32,
    "i64": torch.int64, "ui8": torch.uint8, "f16": torch.float16, "bf16": torch.bfloat16,
    "f32": torch.float32, "f64": torch.float64,
}  # fmt: skip


def unknown_operations(graph: Graph) -> dict[str, list[int]]:
    """The kinds of operations that no meaning is known of, with the lines where they stand."""
    found: dict[str, list[int]] = {}
    for one in graph.operations:
        if one.kind not in MEANINGS:
            found.setdefault(one.kind, []).append(one.line)
    return found


def run_operation(operation: Operation, operands: Tensors) -> tuple[torch.Tensor, ...]:
    """The results of an operation, of the types that the graph says.

    Raises `cirh-result` where its meaning here gives another type.
    """
    found = MEANINGS[operation.kind](operation, operands)
    results = found if isinstance(found, tuple) else (found,)
    for result, wanted in zip(results, operation.result_types, strict=True):
        if (tuple(result.shape), result.dtype) != (wanted.shape, DTYPES[wanted.dtype]):
            raise error(
                "cirh-result",
                f"{operation.kind} gives {tuple(result.shape)} {result.dtype}, not {wanted}",
                span=operation.span,
                help="its attributes or types are of another version than 2.10.0",
            )
    return results


def dense_tensor(dense: Dense) -> torch.Tensor:
    """The tensor of a constant; one number for all elements takes the memory of one."""
    dtype, shape = DTYPES[dense.type.dtype], dense.type.shape
    if len(dense.values) == 1:
        return torch.tensor(dense.values[0], dtype=dtype).expand(shape)
    return torch.tensor(dense.values, dtype=dtype).reshape(shape)


def flops(operation: Operation, types: Mapping[str, TensorType]) -> int:
    """Multiplications and additions of a product of matrices; 0 for any other operation.

    An expert's products are counted for its share of the rows, as if the router were even.
    """
    result = math.prod(operation.result_types[0].shape)
    match operation.kind:
        case "cirh.SparseActMatMul":
            inner = types[operation.operands[2]].shape[1]
            return int(2 * result * inner * _routed_share(operation.attributes))
        case "cirh.SparseActMatMulGrad":
            outer = types[operation.operands[3]].shape[0]
            return int(4 * result * outer * _routed_share(operation.attributes))
        case "cirh.MatMul":
            shape = types[operation.operands[0]].shape
            inner = shape[-2] if operation.attributes.get("transpose_a") else shape[-1]
        case "cirh.DotGeneral":
            shape = types[operation.operands[0]].shape
            dims = _dims(operation.attributes, "lhs_contracting_dimensions")
            inner = math.prod(shape[dim] for dim in dims)
        case _:
            return 0
    return 2 * result * inner


def _routed_share(attributes: Attributes) -> Fraction:
    """Of the rows, those that an even router gives to one expert; all where nothing is said."""
    noted = attributes.get("cs.internal")
    routing = noted.get("expert_block_info") if isinstance(noted, dict) else None
    if not isinstance(routing, dict):
        return Fraction(1)
    return Fraction(int(_number(routing, "top_k")), int(_number(routing, "num_experts")))


def _dims(attributes: Attributes, name: str) -> tuple[int, ...]:
    found = attributes.get(name)
    return found.integers if isinstance(found, Dense) else ()


def _number(attributes: Attributes, name: str) -> float:
    found = attributes[name]
    if not isinstance(found, int | float):
        raise TypeError(f"attribute {name} is {found!r}, no number")
    return found


def _dim(operation: Operation) -> int:
    return int(_number(operation.attributes, "axis"))


def _constant(operation: Operation, _: Tensors) -> torch.Tensor:
    value = operation.attributes["value"]
    if not isinstance(value, Dense):
        raise TypeError(f"a constant is {value!r}, not dense")
    return dense_tensor(value)


def _cast(operation: Operation, operands: Tensors) -> torch.Tensor:
    return operands[0].to(DTYPES[operation.result_types[0].dtype])


def _reshape(operation: Operation, operands: Tensors) -> torch.Tensor:
    return operands[0].reshape(operation.result_types[0].shape)


def _broadcast(operation: Operation, operands: Tensors) -> torch.Tensor:
    shape = operation.result_types[0].shape
    dims = _dims(operation.attributes, "broadcast_dimensions")
    beside = [1] * len(shape)
    for dim, size in zip(dims, operands[0].shape, strict=True):
        beside[dim] = size
    return operands[0].reshape(beside).expand(shape)


def _transpose(_: Operation, operands: Tensors) -> torch.Tensor:
    return operands[0].permute(operands[1].tolist())


def _arange(operation: Operation, operands: Tensors) -> torch.Tensor:
    start, end, step = (one.item() for one in operands)
    found = operation.result_types[0]
    values = torch.arange(start, end, step, dtype=DTYPES[found.dtype])
    dim = int(_number(operation.attributes, "dim"))
    beside = [1] * len(found.shape)
    beside[dim] = -1
    return values.reshape(beside).expand(found.shape)


def _gather(operation: Operation, operands: Tensors) -> torch.Tensor:
    table, places = operands
    if operation.attributes.get("batch_dims") or operation.attributes.get("axis"):
        raise error("cirh-attribute", "cirh.Gather is known along the first dim alone",
                    span=operation.span, help="gather rows of a table")  # fmt: skip
    return table[places.long()]


def _scatter_add(_: Operation, operands: Tensors) -> torch.Tensor:
    into, places, rows = operands
    return into.clone().index_put_(tuple(places.long().unbind(-1)), rows, accumulate=True)


def _slice(operation: Operation, operands: Tensors) -> torch.Tensor:
    """Elements from a first place on, as many along each dim as the result has."""
    value, first, _ = operands
    sizes = operation.result_types[0].shape
    ranges = zip(first.tolist(), sizes, strict=True)
    return value[tuple(slice(start, start + size) for start, size in ranges)]


def _strided_slice(operation: Operation, operands: Tensors) -> torch.Tensor:
    value, *edges = operands
    masks = [name for name, found in operation.attributes.items()
             if name.endswith("_mask") and found]  # fmt: skip
    if masks:
        raise error("cirh-attribute", f"cirh.StridedSlice has {masks[0]} = "
                    f"{operation.attributes[masks[0]]}", span=operation.span,
                    help="known are slices whose masks are 0")  # fmt: skip
    ranges = zip(*(one.tolist() for one in edges), strict=True)
    return value[tuple(slice(start, end, step) for start, end, step in ranges)]


def _top_k(operation: Operation, operands: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """The greatest elements (or the least), in order, with their places; of equal ones the first.

    `torch.topk` says nothing of equal elements; masks of sparse weights have many.
    """
    number, dim = (int(_number(operation.attributes, name)) for name in ("k", "dimension"))
    is_largest = bool(operation.attributes["largest"])
    values, places = torch.sort(operands[0], dim=dim, descending=is_largest, stable=True)
    return values.narrow(dim, 0, number), places.narrow(dim, 0, number)


def _scatter(operation: Operation, operands: Tensors) -> torch.Tensor:
    into, places, values = operands
    kind = str(operation.attributes["reduce_kind"])
    if kind != "NONE":
        raise error("cirh-attribute", f"cirh.Scatter has kind {kind}", span=operation.span,
                    help="known is NONE, which sets")  # fmt: skip
    return into.scatter(_dim(operation), places.long(), values)


def _divide(_: Operation, operands: Tensors) -> torch.Tensor:
    """A quotient; that of integers is one."""
    is_exact = operands[0].is_floating_point()
    return torch.div(*operands, rounding_mode=None if is_exact else "trunc")


def _matmul(operation: Operation, operands: Tensors) -> torch.Tensor:
    left, right = operands
    if operation.attributes.get("transpose_a"):
        left = left.transpose(-1, -2)
    if operation.attributes.get("transpose_b"):
        right = right.transpose(-1, -2)
    return left @ right


def _masked_matmul(_: Operation, operands: Tensors) -> torch.Tensor:
    """Rows times a transposed weight, of those rows that a mask has; the others are zero."""
    rows, mask, weight = operands
    found = rows.new_zeros(*mask.shape, weight.shape[0])
    found[mask != 0] = rows[mask != 0] @ weight.T
    return found


def _masked_matmul_grad(_: Operation, operands: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    gradient, rows, mask, weight = operands
    along, taken = gradient[mask != 0], rows[mask != 0]
    to_rows = torch.zeros_like(rows)
    to_rows[mask != 0] = along @ weight
    return to_rows, along.T @ taken


def _dot_general(operation: Operation, operands: Tensors) -> torch.Tensor:
    """Products summed over the contracting dims: result dims are batch, left, then right."""
    sides = []
    for side, operand in zip(("lhs", "rhs"), operands, strict=True):
        batch = _dims(operation.attributes, f"{side}_batching_dimensions")
        summed = _dims(operation.attributes, f"{side}_contracting_dimensions")
        free = [dim for dim in range(operand.ndim) if dim not in (*batch, *summed)]
        sides.append((operand, batch, summed, free))
    (left, left_batch, left_summed, left_free), (right, right_batch, right_summed, right_free) = (
        sides
    )
    batch_shape = [left.shape[dim] for dim in left_batch]
    inner = math.prod(left.shape[dim] for dim in left_summed)
    left = left.permute(*left_batch, *left_free, *left_summed).reshape(*batch_shape, -1, inner)
    right = right.permute(*right_batch, *right_summed, *right_free)
    product = left @ right.reshape(*batch_shape, inner, -1)
    return product.reshape(operation.result_types[0].shape)


_REDUCTIONS: Final[Mapping[str, Callable[..., torch.Tensor]]] = {
    "ADD": torch.sum, "MAX": torch.amax, "MIN": torch.amin, "MEAN": torch.mean,
    "ARGMAX": lambda value, dims: value.argmax(*dims),
}  # fmt: skip


def _reduce(operation: Operation, operands: Tensors) -> torch.Tensor:
    kind = str(operation.attributes["reduce_kind"])
    if kind in ("ALL", "ANY"):
        found = operands[0].all() if kind == "ALL" else operands[0].any()
        return found.reshape(operation.result_types[0].shape)
    if kind not in _REDUCTIONS:
        raise error("cirh-attribute", f"cirh.Reduce has kind {kind}", span=operation.span,
                    help=f"known are {', '.join(_REDUCTIONS)}, ALL and ANY")  # fmt: skip
    dims = _dims(operation.attributes, "dimensions") or tuple(range(operands[0].ndim))
    found = _REDUCTIONS[kind](operands[0], dims) if operands[0].ndim else operands[0]
    dtype = DTYPES[operation.result_types[0].dtype]
    return found.to(dtype).reshape(operation.result_types[0].shape)


def _l2_norm(operation: Operation, operands: Tensors) -> torch.Tensor:
    dims = _dims(operation.attributes, "dims")
    found: torch.Tensor = torch.linalg.vector_norm(operands[0], 2, dims or None)
    return found.reshape(operation.result_types[0].shape)


_COMPARISONS: Final[Mapping[str, Callable[..., torch.Tensor]]] = {
    "EQ": torch.eq, "NE": torch.ne, "LT": torch.lt, "LE": torch.le, "GT": torch.gt, "GE": torch.ge,
}  # fmt: skip


def _compare(operation: Operation, operands: Tensors) -> torch.Tensor:
    return _COMPARISONS[str(operation.attributes["comparison_direction"])](*operands)


def _clamp(_: Operation, operands: Tensors) -> torch.Tensor:
    value, low, high = operands
    return torch.clamp(value, low, high)


def _split(operation: Operation, operands: Tensors) -> tuple[torch.Tensor, ...]:
    sizes = _dims(operation.attributes, "split_sizes")
    return tuple(operands[0].split(list(sizes), _dim(operation)))


def _layer_norm(operation: Operation, operands: Tensors) -> torch.Tensor:
    value, bias, weight = operands
    epsilon = _number(operation.attributes, "epsilon")
    return torch.nn.functional.layer_norm(value, weight.shape, weight, bias, epsilon)


def _layer_norm_grad(operation: Operation, operands: Tensors) -> tuple[torch.Tensor, ...]:
    gradient, value, bias, weight = operands
    epsilon = _number(operation.attributes, "epsilon")
    dims = weight.shape
    _, mean, deviation = torch.native_layer_norm(value, dims, weight, bias, epsilon)
    to_value, to_weight, to_bias = torch.ops.aten.native_layer_norm_backward(
        gradient.contiguous(), value.contiguous(), dims, mean, deviation, weight, bias, [True] * 3
    )
    return to_value, to_bias, to_weight


def _approximation(operation: Operation) -> str:
    return str(operation.attributes.get("approximation", "NONE")).lower()


def _gelu(operation: Operation, operands: Tensors) -> torch.Tensor:
    return torch.nn.functional.gelu(operands[0], approximate=_approximation(operation))


def _gelu_grad(operation: Operation, operands: Tensors) -> torch.Tensor:
    gradient, value = operands
    found: torch.Tensor = torch.ops.aten.gelu_backward(
        gradient, value, approximate=_approximation(operation)
    )
    return found


def _softmax(operation: Operation, operands: Tensors) -> torch.Tensor:
    return torch.softmax(operands[0], _dim(operation))


def _cross_entropy(operation: Operation, operands: Tensors) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of each row, and its gradient: the probabilities, less one at the label."""
    logits, labels = operands
    logarithms = torch.log_softmax(logits, _dim(operation))
    at_labels = labels.long()[:, None]
    gradient = logarithms.exp()
    gradient.scatter_add_(1, at_labels, gradient.new_full(at_labels.shape, -1.0))
    return -logarithms.gather(1, at_labels)[:, 0], gradient


def _of_one(function: Callable[[torch.Tensor], torch.Tensor]) -> Meaning:
    return lambda _, operands: function(operands[0])


def _of_two(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Meaning:
    return lambda _, operands: function(operands[0], operands[1])


MEANINGS: Final[Mapping[str, Meaning]] = {
    "cirh.Const": _constant,
    "cirh.Cast": _cast,
    "cirh.Reshape": _reshape,
    "cirh.BroadcastInDim": _broadcast,
    "cirh.Transpose": _transpose,
    "cirh.Arange": _arange,
    "cirh.Gather": _gather,
    "cirh.ScatterNd": _scatter_add,
    "cirh.Slice": _slice,
    "cirh.StridedSlice": _strided_slice,
    "cirh.TopK": _top_k,
    "cirh.Scatter": _scatter,
    "cirh.MatMul": _matmul,
    "cirh.DotGeneral": _dot_general,
    "cirh.SparseActMatMul": _masked_matmul,
    "cirh.SparseActMatMulGrad": _masked_matmul_grad,
    "cirh.Reduce": _reduce,
    "cirh.L2Norm": _l2_norm,
    "cirh.Compare": _compare,
    "cirh.Select": lambda _, operands: torch.where(operands[0], operands[1], operands[2]),
    "cirh.Clamp": _clamp,
    "cirh.Split": _split,
    "cirh.Concat": lambda operation, operands: torch.cat(list(operands), _dim(operation)),
    "cirh.LayerNorm": _layer_norm,
    "cirh.LayerNormGrad": _layer_norm_grad,
    "cirh.Gelu": _gelu,
    "cirh.GeluGrad": _gelu_grad,
    "cirh.Softmax": _softmax,
    "cirh.SparseSoftmaxCrossEntropyWithLogits": _cross_entropy,
    "cirh.Add": _of_two(torch.add),
    "cirh.Sub": _of_two(torch.sub),
    "cirh.Mul": _of_two(torch.mul),
    "cirh.Div": _divide,
    "cirh.And": _of_two(torch.logical_and),
    "cirh.Or": _of_two(torch.logical_or),
    "cirh.Abs": _of_one(torch.abs),
    "cirh.Cos": _of_one(torch.cos),
    "cirh.Log": _of_one(torch.log),
    "cirh.Sigmoid": _of_one(torch.sigmoid),
    "cirh.Relu": _of_one(torch.relu),
    "cirh.Pow": _of_two(torch.pow),
    "cirh.Exp": _of_one(torch.exp),
    "cirh.Sqrt": _of_one(torch.sqrt),
    "cirh.Rsqrt": _of_one(torch.rsqrt),
    "cirh.Sin": _of_one(torch.sin),
    "cirh.Sign": _of_one(torch.sign),
    "cirh.Reciprocal": _of_one(torch.reciprocal),
}  # fmt: skip
