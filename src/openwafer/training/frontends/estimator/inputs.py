"""The batches of an input function: features and labels as tensors."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import torch

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.frontends.estimator.functions import call_with, place_of
from openwafer.training.frontends.scripts.batches import require_iterable, with_long_integers
from openwafer.training.torch_private import pytree


class Batch(NamedTuple):
    """One batch.

    Attributes:
        features: a tensor, or tensors by name.
        labels: the same, or None.
    """

    features: Any
    labels: Any = None


def batches_of(
    input_fn: Callable[..., Any], given: Mapping[str, Any], *, needs_end: bool
) -> Iterator[Batch]:
    """The batches that an input function gives.

    Args:
        input_fn: returns a ``tf.data.Dataset``, a loader of torch or any iterable of batches; or
            one batch, which every step gets: features, or a tuple of features and labels.
        given: arguments that it may ask for by name.
        needs_end: whether nobody counts steps.

    Raises:
        OpenwaferError: ``estimator-input`` for what gives no batches, ``estimator-no-batches``,
            ``estimator-batch`` and ``estimator-batch-shape`` when they are asked for.
    """
    where = place_of(input_fn, "input_fn")
    source = call_with(input_fn, given, "input_fn")
    if isinstance(source, tuple | Mapping) or _is_array(source):
        if needs_end:
            raise error(
                "estimator-input",
                f"{where} returned one batch, which has no end",
                help="give steps, or return an iterable of batches",
            )
        return _checked(repeat(source), where)
    if hasattr(source, "as_numpy_iterator"):
        return _checked(source.as_numpy_iterator(), where)
    require_iterable(source, "estimator-input", f"{where} is to return batches")
    return _checked(source, where)


def _checked(source: Iterable[Any], where: str) -> Iterator[Batch]:
    first: list[tuple[str, torch.Tensor]] | None = None
    for number, one in enumerate(source, start=1):
        batch = with_long_integers(_batch_of(one, where))
        leaves = [
            (pytree.keystr(path), leaf)
            for path, leaf in pytree.tree_flatten_with_path(tuple(batch))[0]
            if isinstance(leaf, torch.Tensor)
        ]
        if first is None:
            first = leaves
        _require_like(first, leaves, number, where)
        yield batch
    if first is None:
        raise error(
            "estimator-no-batches",
            f"{where} has given no batch",
            help="look at the dataset's length, the batch size and drop_remainder",
        )


def _batch_of(one: Any, where: str) -> Batch:
    if isinstance(one, tuple | list):
        if len(one) != 2:
            raise error(
                "estimator-batch",
                f"{where} has given a {type(one).__name__} of {len(one)} as a batch",
                help="give (features, labels), or features alone: a tensor, or tensors by name",
            )
        return Batch(_tensors(one[0], where), _tensors(one[1], where))
    return Batch(_tensors(one, where))


def _tensors(value: Any, where: str) -> Any:
    if isinstance(value, Mapping):
        return {name: _tensors(one, where) for name, one in value.items()}
    if isinstance(value, tuple | list) and not any(np.isscalar(one) for one in value):
        return tuple(_tensors(one, where) for one in value)
    if value is None or isinstance(value, torch.Tensor):
        return value
    array = np.asarray(value)
    if array.dtype.kind in "OUSV":
        raise error(
            "estimator-batch",
            f"{where} has given {type(value).__name__} {str(value)[:40]!r} in a batch",
            help="give numbers: tensors of torch, arrays of NumPy or TensorFlow",
        )
    # An array that nobody may write to would be written to through a tensor.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _is_array(value: object) -> bool:
    return isinstance(value, torch.Tensor | np.ndarray)


def _require_like(
    first: list[tuple[str, torch.Tensor]],
    now: list[tuple[str, torch.Tensor]],
    number: int,
    where: str,
) -> None:
    """Refuse a batch of other shapes than the first; the last of a loader may be smaller."""
    if [name for name, _ in first] != [name for name, _ in now]:
        names = ", ".join(name for name, _ in now)
        raise _changed(where, number, f"tensors {names}", ", ".join(n for n, _ in first))
    for (name, then), (_, found) in zip(first, now, strict=True):
        fits = found.shape[1:] == then.shape[1:] and found.shape[:1] <= then.shape[:1]
        if not fits or found.dtype is not then.dtype:
            raise _changed(where, number, f"{name} as {_told(found)}", _told(then))


def _changed(where: str, number: int, now: str, first: str) -> OpenwaferError:
    return error(
        "estimator-batch-shape",
        f"batch {number} of {where} has {now}, and the first one {first}",
        notes=("0 are the features, 1 the labels; only the size of the batch may be smaller",),
        help="pad or crop to one shape in input_fn",
    )


def _told(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)}"
