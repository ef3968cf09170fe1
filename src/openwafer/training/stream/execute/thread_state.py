"""What a thread has of torch, and forwards that take turns in it each want as they left it.

Random states; contexts (whether autograd records, autocast, hooks for saved tensors), of which a
model may set one around several layers; and the casts that autocast keeps.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.stream.device.device import Device
from openwafer.training.stream.device.weights import OWN_DATA
from openwafer.training.stream.execute.reach import names_autocast
from openwafer.training.stream.layers import PINNED, Partition
from openwafer.training.torch_private import (
    DisableTorchFunctionSubclass,
    disable_current_modes,
    is_in_torch_dispatch_mode,
    pop_saved_tensors_hooks,
    push_saved_tensors_hooks,
    set_grad_enabled,
    top_saved_tensors_hooks,
)


@dataclass(frozen=True)
class RandomState:
    """States of torch's host generator, of an accelerator's, and of those of Python and NumPy.

    Attributes:
        cpu: state of torch's CPU generator, uint8.
        device: the accelerator whose generator is saved too, or ``None``.
        accelerator: its state, uint8.
        python, numpy: states of the generators behind ``random`` and ``numpy.random``, where they
            are saved.
    """

    cpu: torch.Tensor
    device: torch.device | None = None
    accelerator: torch.Tensor | None = None
    python: tuple[Any, ...] | None = None
    numpy: dict[str, Any] | None = None

    @classmethod
    def now(cls, device: torch.device, *, is_whole: bool = False) -> "RandomState":
        """The present states.

        Args:
            is_whole: takes those of Python and NumPy too, which costs fifty times as much.
        """
        python = random.getstate() if is_whole else None
        numpy = np.random.get_state(legacy=False) if is_whole else None
        with _unseen_by_modes():
            cpu = torch.get_rng_state()
            if device.type != "cuda":
                return cls(cpu, python=python, numpy=numpy)
            return cls(cpu, device, torch.cuda.get_rng_state(device), python, numpy)

    def restore(self) -> None:
        """Set the generators back to these states."""
        with _unseen_by_modes():
            torch.set_rng_state(self.cpu)
            if self.device is not None and self.accelerator is not None:
                torch.cuda.set_rng_state(self.accelerator, self.device)
        if self.python is not None and self.numpy is not None:
            random.setstate(self.python)
            np.random.set_state(self.numpy)


def _unseen_by_modes() -> AbstractContextManager[object]:
    is_seen = is_in_torch_dispatch_mode(include_infra_modes=True)
    return disable_current_modes() if is_seen else nullcontext()


def keeping_torch_generators() -> AbstractContextManager[None]:
    """Context after which torch's generators are as before.

    Those of GPUs count once somebody uses these: to ask for them would open each GPU there is.
    """
    used = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    return torch.random.fork_rng(devices=list(used), device_type="cuda")


@contextmanager
def keeping_random_state() -> Iterator[None]:
    """Context after which the generators of torch, Python and NumPy are as before."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with keeping_torch_generators():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


Hooks: TypeAlias = tuple[Callable[..., Any], Callable[..., Any]]

Switches: TypeAlias = tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...]

# Which kernels attention may choose from, on the host as well.
_ATTENTION: Final[Switches] = (
    (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.enable_flash_sdp),
    (torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.enable_mem_efficient_sdp),
    (torch.backends.cuda.math_sdp_enabled, torch.backends.cuda.enable_math_sdp),
    (torch.backends.cuda.cudnn_sdp_enabled, torch.backends.cuda.enable_cudnn_sdp),
)
_SWITCHES: Final[Switches] = (
    (torch.is_grad_enabled, set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    *_ATTENTION,
)
_KINDS: Final = ("cpu", "cuda")


def attention_as_now() -> Callable[[], AbstractContextManager[None]]:
    """Makes contexts in which attention has the kernels to choose from that it has now."""
    allowed = [read() for read, _ in _ATTENTION]

    @contextmanager
    def again() -> Iterator[None]:
        before = [read() for read, _ in _ATTENTION]
        if before == allowed:
            yield
            return
        _write(_ATTENTION, allowed)
        try:
            yield
        finally:
            _write(_ATTENTION, before)

    return again


def _write(switches: Switches, values: Iterable[Any]) -> None:
    for (_, write), value in zip(switches, values, strict=True):
        write(value)


@dataclass(frozen=True)
class OpenContexts:
    """What contexts have set in this thread.

    Attributes:
        switches: in the order of the table above.
        autocast: by kind of device, whether it is on, and its dtype.
        autocast_depth: how many contexts of it are open.
        hooks: pairs for saved tensors, the outermost first.
        is_inference: whether one is of ``torch.inference_mode()``.
    """

    switches: tuple[Any, ...]
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    autocast_depth: int
    hooks: tuple[Hooks, ...]
    is_inference: bool

    @classmethod
    def now(cls) -> "OpenContexts":
        """Those that are open."""
        kinds = ((k, torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in _KINDS)
        hooks = _take_hooks()
        _push_hooks(hooks)
        switches = tuple(read() for read, _ in _SWITCHES)
        is_inference = torch.is_inference_mode_enabled()
        return cls(switches, tuple(kinds), autocast_depth(), hooks, is_inference)

    def restore(self) -> None:
        """Let these be open, and no others; autocast keeps no cast.

        Raises:
            OpenwaferError: ``stopped-in-inference``.
        """
        refuse_inference(outside=self.is_inference)
        self.restore_all_but_inference()

    def restore_all_but_inference(self) -> None:
        """As :meth:`restore`, whether or not a context of inference is open."""
        _write(_SWITCHES, self.switches)
        for kind, is_enabled, dtype in self.autocast:
            torch.set_autocast_enabled(kind, is_enabled)
            torch.set_autocast_dtype(kind, dtype)
        for _ in range(autocast_depth(), self.autocast_depth):
            torch.autocast_increment_nesting()
        for _ in range(self.autocast_depth, autocast_depth()):
            torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
        _take_hooks()
        _push_hooks(self.hooks)


def refuse_inference(*, outside: bool) -> None:
    """Refuse a forward that stops in another mode of inference than there is outside of it."""
    if torch.is_inference_mode_enabled() is not outside:
        raise error(
            "stopped-in-inference",
            "the model's forward calls a streamed layer inside torch.inference_mode(), which "
            "micro-batches that take turns at a layer cannot leave",
            help="write torch.no_grad() in its place",
        )


def autocast_depth() -> int:
    """How many contexts of autocast are open, those that turn it off included."""
    depth: int = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return depth


def foreign_hooks() -> str | None:
    """Where the hooks for saved tensors are from that this program's own pass over.

    Those of torch put tensors aside or compute them again and change no value: ``None``, as where
    there are none.
    """
    hooks = _take_hooks()
    _push_hooks(hooks)
    owners = (_owner_of(pack) for pack, _ in reversed(hooks))
    owner = next((one for one in owners if not _is_within(one, "openwafer")), None)
    return None if owner is None or _is_within(owner, "torch") else owner


def hooks_passed_over(layer: str, owner: str) -> OpenwaferError:
    """The error of a forward inside hooks for saved tensors that would not see what it saves."""
    where = f"layer {layer!r}" if layer else "the streamed model"
    return error(
        "saved-tensor-hooks",
        f"{where} runs inside saved_tensors_hooks of {owner}, and what it saves for its backward "
        "does not go through them",
        help="leave them out; activations: offload puts into host memory what layers save",
    )


def _owner_of(function: Callable[..., Any]) -> str:
    """The module of Python that a function is from."""
    inner = getattr(function, "func", function)
    return getattr(inner, "__module__", None) or "Python"


def _is_within(module: str, package: str) -> bool:
    return module.partition(".")[0] == package


def _take_hooks() -> tuple[Hooks, ...]:
    taken: list[Hooks] = []
    while (top := _innermost_hooks()) is not None:
        taken.append(top)
        pop_saved_tensors_hooks()
    return tuple(reversed(taken))


def _innermost_hooks() -> Hooks | None:
    # torch's own types leave out that there may be none.
    found: Any = top_saved_tensors_hooks(True)
    return None if found is None else (found[0], found[1])


def _push_hooks(hooks: tuple[Hooks, ...]) -> None:
    for pair in hooks:
        push_saved_tensors_hooks(*pair)


# Autocast leaves embeddings alone.
_NOT_CAST: Final = (nn.Embedding, nn.EmbeddingBag)


def autocast(
    torch_device: torch.device, dtype: torch.dtype | None
) -> AbstractContextManager[object]:
    """Autocast to ``dtype``; a context that does nothing for ``None``.

    A cast weight is not kept for a second use: it would stay on the device until the forward ends,
    and the gradients of its uses would be added in ``dtype``.
    """
    if dtype is None:
        return nullcontext()
    return torch.autocast(torch_device.type, dtype=dtype, cache_enabled=False)


class SharedCasts:
    """Finds weights that a plain loop would cast once, for several calls of layers.

    Autocast keeps a cast of a weight until its outermost context ends, unless it is told not to.
    The gradients of all uses of that cast are then added in its own format, and not in the
    weight's. A streamed weight leaves the device between two layers, and its cast with it. So the
    calls of layers are looked at, and pinned weights between them.

    Args:
        model: names the weights.
        split: tells which are pinned.
        device: where it runs.
        is_checking: whether it looks.
    """

    def __init__(
        self, model: nn.Module, split: Partition, device: Device, *, is_checking: bool
    ) -> None:
        self._is_checking = is_checking
        self._model = model
        parameters = dict(model.named_parameters())
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._pinned = [parameters[name] for name in split.records.get(PINNED, ())]
        self._device = device
        self._may_enter: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
        # What autograd calls the cast of the probe that autocast keeps.
        self._kept = -1
        self._used: set[int] = set()

    def leaving_none(self, module: nn.Module | None) -> AbstractContextManager[None]:
        """Context of a call, after which no cast is kept.

        Args:
            module: is called; ``None`` where a call is only repeated.

        Raises:
            OpenwaferError: ``cast-shared``.
        """
        # Outside of autocast nothing is kept.
        return self._leaving_none(module) if autocast_depth() else nullcontext()

    @contextmanager
    def _leaving_none(self, module: nn.Module | None) -> Iterator[None]:
        is_looking = self._is_looking
        if is_looking:
            self._begin(module)
        try:
            yield
            if is_looking and module is not None:
                self._note_kept([*self._pinned, *self._casts_inside(module)])
        finally:
            torch.clear_autocast_cache()
            if is_looking:
                self._kept = self._cast_of_probe()

    def stop(self) -> frozenset[int]:
        """The forward stops for others that have casts of their own; returns what it has cast."""
        if self._is_looking:
            self._begin(None)
        torch.clear_autocast_cache()
        return frozenset(self._used)

    def go_on(self, used: frozenset[int] = frozenset()) -> None:
        """A forward that has cast these begins, or goes on behind others."""
        torch.clear_autocast_cache()
        self._used = set(used)
        if self._is_looking:
            self._kept = self._cast_of_probe()

    @property
    def _is_looking(self) -> bool:
        is_inside = self._is_checking and autocast_depth() > 0
        return is_inside and (torch.is_autocast_cache_enabled() or self._may_be_entered)

    @cached_property
    def _may_be_entered(self) -> bool:
        """Whether the model's code can enter autocast."""
        return names_autocast(self._model)

    def _begin(self, module: nn.Module | None) -> None:
        if self._cast_of_probe() != self._kept:
            self._used.clear()
        self._note_kept(self._pinned)
        torch.clear_autocast_cache()
        # The layer may be run again before its call ends.
        self._kept = self._cast_of_probe()
        if module is not None and self._keeps_casts:
            pinned = set(map(id, self._pinned))
            for one in module.modules():
                if not isinstance(one, _NOT_CAST):
                    for parameter in one.parameters(recurse=False):
                        if id(parameter) not in pinned and parameter.ndim > 1:
                            self._use(parameter)

    @property
    def _keeps_casts(self) -> bool:
        """Whether autocast is on and keeps casts."""
        is_on = torch.is_autocast_enabled(self._device.torch_device.type)
        return is_on and torch.is_autocast_cache_enabled()

    def _casts_inside(self, module: nn.Module) -> Iterable[nn.Parameter]:
        """Weights that a layer may have cast under autocast of its own."""
        if self._keeps_casts:
            return ()
        may_enter = self._may_enter.get(module)
        if may_enter is None:
            may_enter = self._may_enter[module] = names_autocast(module)
        return module.parameters() if may_enter else ()

    def _note_kept(self, weights: Iterable[nn.Parameter]) -> None:
        for weight in weights:
            if _may_be_cast(weight) and self._is_kept(weight):
                self._use(weight)

    def _use(self, weight: nn.Parameter) -> None:
        if not _may_be_cast(weight):
            return
        if id(weight) in self._used and torch.is_grad_enabled():
            self._used.clear()
            raise error(
                "cast-shared",
                f"the weight {self._names[id(weight)]!r} is used by several calls in one "
                "context of autocast, which would keep one cast for all of them and add their "
                "gradients in its format; streamed weights are cast in each call",
                help="write torch.autocast(..., cache_enabled=False), in the plain loop too if the "
                "two are compared, or enter autocast for each forward",
            )
        self._used.add(id(weight))

    def _keeping(self) -> torch.autocast:
        return torch.autocast(
            self._device.torch_device.type, torch.bfloat16, enabled=True, cache_enabled=True
        )

    def _is_kept(self, weight: nn.Parameter) -> bool:
        """Whether autocast keeps a cast of a weight: it is then used in the weight's place."""
        data = OWN_DATA.__get__(weight)
        nothing = torch.empty(0, 0, dtype=weight.dtype, device=data.device)
        # A weight that is away would be read from the store.
        as_it_is = DisableTorchFunctionSubclass()
        with self._device.host_section(), torch.no_grad(), self._keeping(), as_it_is:
            OWN_DATA.__set__(weight, nothing)
            try:
                torch.mm(weight, nothing)
            except RuntimeError:
                return True
            finally:
                OWN_DATA.__set__(weight, data)
        return False

    @cached_property
    def _probe(self) -> nn.Parameter:
        return nn.Parameter(torch.zeros(1, 1, device=self._device.torch_device))

    def _cast_of_probe(self) -> int:
        """The number of the node that casts the probe: another one once casts were forgotten."""
        as_it_is = saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor)
        with self._device.host_section(), torch.enable_grad(), as_it_is, self._keeping():
            product = torch.mm(self._probe, self._probe)
        assert product.grad_fn is not None
        cast = product.grad_fn.next_functions[0][0]
        assert cast is not None
        return cast._sequence_nr()  # noqa: SLF001 - no public name


def _may_be_cast(weight: nn.Parameter) -> bool:
    return weight.requires_grad and weight.dtype is torch.float32
