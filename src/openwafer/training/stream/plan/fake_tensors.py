"""Fake tensors of torch, whose operators are worked out once for each kind of arguments.

What an operator on fake tensors returns depends on the sizes, strides and types of its arguments
alone. torch's own cache of that takes a quarter of a millisecond a call, a plan makes tens of
thousands of calls, and layers are alike.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import isnan
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import torch

from openwafer.training.stream.plan.operators import (
    num_spanned,
)
from openwafer.training.torch_private import (
    DispatchModeKey,
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    Unguarded,
    make_fake,
    num_dispatch_modes,
    pytree,
    set_dispatch_mode,
    unset_dispatch_mode,
)

Key: TypeAlias = tuple[object, ...]


# What an operator returns may depend on values, or on more of its arguments than their kinds.
_UNFORESEEABLE: Final = frozenset(
    {
        torch.Tag.data_dependent_output,
        torch.Tag.dynamic_output_shape,
        torch.Tag.inplace_view,
    }
)


_NORMS: Final = frozenset(
    getattr(torch.ops.aten, name).default
    for name in ("native_layer_norm", "native_group_norm", "native_batch_norm")
)


class _Returned(NamedTuple):
    """A tensor that an operator returned: one of its arguments, or one on its storage, or new.

    Attributes:
        source: number of that argument, a list's elements counted each; ``None`` for a new tensor.
        is_source: whether it is the argument itself.
        shape, stride, offset: in elements; the offset from that argument's own.
    """

    source: int | None
    is_source: bool
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, eq=False, slots=True)
class _Outcome:
    """What an operator returned; one object for each kind of call.

    Attributes:
        form: tuple or list; ``None`` for a single tensor, or nothing.
    """

    form: type | None
    tensors: tuple[_Returned | None, ...]


@cache
def _go_backward() -> None:
    """Let torch count the devices of backwards, before a mode makes its CUDA builds count another.

    Entered where there is no GPU, a mode has them count one, for which the next backward would
    start a thread; after that torch refuses backwards in forks of this process.
    """
    with torch.inference_mode(False):
        torch.ones(1, device="cpu", requires_grad=True).backward()


# As a string, torch would parse it each time.
_META: Final = torch.device("meta")
_KNOWN: Final[dict[Key, _Outcome]] = {}


class RememberingFakeMode(Unguarded, FakeTensorMode):
    """A mode whose tensors have no memory, and that remembers what operators return.

    Attributes:
        met: stands for the kind of the newest call of :meth:`call`; ``None`` for one not known.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not torch.cuda.is_available():
            _go_backward()
        self.met: object | None = None
        # Of real tensors, which live on where the model's code has them; by identity.
        self._stand_ins: dict[int, FakeTensor] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        tensors: list[FakeTensor] = []
        key = _key_of(func, args, kwargs, tensors) if _is_foreseeable(func) else None
        if key is None:
            self._keep_stand_ins(args, kwargs)
            return super().__torch_dispatch__(func, types, args, kwargs)
        known = _KNOWN.get(key)
        if known is not None:
            return self._make_all(known, tensors)
        out = _with_statistics(func, args, self._work_out(func, types, args, kwargs))
        outcome = _outcome_of(out, tensors)
        # An operator that gives an argument another size is none to remember.
        if outcome is not None and _key_of(func, args, kwargs, []) == key:
            _KNOWN[key] = outcome
        return out

    def _work_out(
        self, func: Any, types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Call an operator without torch's cache, which takes a third of a call that it has not."""
        was_enabled, self.cache_enabled = self.cache_enabled, False
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        finally:
            self.cache_enabled = was_enabled

    def _keep_stand_ins(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """See that what is counted of a real tensor counts as long as it would."""
        for leaf in pytree.arg_tree_leaves(*args, **kwargs):
            if type(leaf) is torch.Tensor and self.allow_non_fake_inputs:
                made = self.fake_tensor_converter.from_real_tensor(self, leaf)
                self._stand_ins[id(made)] = made

    def call(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call an operator from a mode above this one, which torch need not find where it is known.

        Where a third mode is between the two, it is to see every call.
        """
        self.met = None
        if _is_foreseeable(func) and num_dispatch_modes() == 1:
            tensors: list[FakeTensor] = []
            key = _key_of(func, args, kwargs, tensors)
            known = None if key is None else _KNOWN.get(key)
            if known is not None:
                self.met = known
                unset_dispatch_mode(DispatchModeKey.FAKE)
                try:
                    return self._make_all(known, tensors)
                finally:
                    set_dispatch_mode(self)
        return func(*args, **kwargs)

    def _make_all(self, outcome: _Outcome, tensors: Sequence[FakeTensor]) -> Any:
        made = [None if one is None else self._make(one, tensors) for one in outcome.tensors]
        return made[0] if outcome.form is None else outcome.form(made)

    def _make(self, returned: _Returned, tensors: Sequence[FakeTensor]) -> torch.Tensor:
        if returned.source is None:
            bare = torch.empty_strided(
                returned.shape, returned.stride, dtype=returned.dtype, device=_META
            )
            return make_fake(self, bare, returned.device)
        source = tensors[returned.source]
        if returned.is_source:
            return source
        bare = torch.empty(0, dtype=returned.dtype, device=_META)
        offset = source.storage_offset() + returned.offset
        bare.set_(source.untyped_storage(), offset, returned.shape, returned.stride)
        return make_fake(self, bare, returned.device)


def _with_statistics(func: Any, args: Sequence[Any], out: Any) -> Any:
    """Give mean and deviation of a norm the weight's format, as the CPU does, and fakes do not.

    Under autocast they are fp32 beside inputs of half the size.
    """
    if func not in _NORMS or args[0].device.type != "cpu":
        return out
    weight = next((one for one in args[1:] if isinstance(one, torch.Tensor)), args[0])
    return (out[0], *(one.to(weight.dtype) for one in out[1:]))


@cache
def _is_foreseeable(func: Any) -> bool:
    return (
        isinstance(func, OpOverload)
        and func.namespace == "aten"
        and "lift" not in func.name()
        and _UNFORESEEABLE.isdisjoint(func.tags)
    )


@cache
def _is_view(func: Any) -> bool:
    return bool(func.is_view)


def _key_of(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: list[FakeTensor]
) -> Key | None:
    """A call's kind, and its tensors; ``None`` where what it returns depends on more than that."""
    parts: list[object] = [func, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
    for value in args:
        if not _add(value, parts, tensors):
            return None
    for name, value in kwargs.items():
        parts.append(name)
        if not _add(value, parts, tensors):
            return None
    if _is_view(func):
        parts += (tensor.storage_offset() for tensor in tensors)
    return tuple(parts)


# What such a value is worth to an operator, it is to a key.
_PLAIN: Final = frozenset(
    {int, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}
)


def _add(value: Any, parts: list[object], tensors: list[FakeTensor]) -> bool:
    """Add an argument to a key; whether it can be one's part."""
    kind = type(value)
    # 1, 1.0 and True are equal, but not to an operator.
    parts.append(kind)
    if kind is FakeTensor:
        if value.constant is not None or not _is_plain(value):
            return False
        tensors.append(value)
        parts += (value.shape, value.stride(), value.dtype, value.fake_device, value.requires_grad)
    elif kind in _PLAIN:
        parts.append(value)
    elif isinstance(value, torch.Tensor):
        return False
    elif isinstance(value, (list, tuple)):
        parts.append(len(value))
        return all(_add(item, parts, tensors) for item in value)
    elif isinstance(value, float) and isnan(value):
        # It is not equal to itself, so a key with it would never be found again.
        parts.append(None)
    else:
        parts.append(value)
    return True


def _is_plain(tensor: torch.Tensor) -> bool:
    is_conjugate = tensor.dtype.is_complex and tensor.is_conj()
    return tensor.layout is torch.strided and not is_conjugate and not tensor.is_neg()


def _outcome_of(out: Any, tensors: Sequence[FakeTensor]) -> _Outcome | None:
    """What to remember of a call; ``None`` where it cannot be made again from its kind."""
    form = type(out) if isinstance(out, list | tuple) else None
    all_made = [out] if form is None else list(out)
    made = [one for one in all_made if one is not None]
    if form not in (None, list, tuple) or not all(map(_can_be_made, made)):
        return None
    returned = {id(one): _returned(one, tensors) for one in made}
    new = [one for one in made if returned[id(one)].source is None]
    if len({one.untyped_storage()._cdata for one in new}) < len(new):
        return None
    if any(one.untyped_storage().nbytes() != _needed_bytes(one) for one in new):
        return None
    return _Outcome(form, tuple(returned.get(id(one)) for one in all_made))


def _can_be_made(out: object) -> bool:
    return type(out) is FakeTensor and out.constant is None and _is_plain(out)


def _returned(out: FakeTensor, tensors: Sequence[FakeTensor]) -> _Returned:
    storage = out.untyped_storage()._cdata
    itself = [number for number, one in enumerate(tensors) if one is out]
    sharing = [n for n, one in enumerate(tensors) if one.untyped_storage()._cdata == storage]
    source = next(iter(itself or sharing), None)
    before = 0 if source is None else int(tensors[source].storage_offset())
    return _Returned(
        source,
        bool(itself),
        tuple(out.shape),
        out.stride(),
        int(out.storage_offset()) - before,
        out.dtype,
        out.fake_device,
    )


def _needed_bytes(tensor: torch.Tensor) -> int:
    if tensor.storage_offset() or tensor.requires_grad:
        return -1
    return num_spanned(tensor.shape, tensor.stride()) * tensor.element_size()


Result = TypeVar("Result")


def faked(walk: Callable[[RememberingFakeMode | None], Result]) -> Result:
    """Run ``walk`` on fake tensors, or on real ones where an operator has no fake form."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, log.disabled = log.disabled, True
    try:
        with RememberingFakeMode(allow_non_fake_inputs=True) as mode:
            return walk(mode)
    except RuntimeError:
        # Data-dependent control flow, or an operator without a fake form: a genuine fault of the
        # model comes up again below.
        return walk(None)
    finally:
        log.disabled = was_disabled
