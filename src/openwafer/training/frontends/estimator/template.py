"""What a model function constructs, once: its later calls get what its first call has made.

A graph of TensorFlow is built once and run at every step. Here a model function is called at every
step, and the n-th module, optimizer or scheduler that it constructs is the one of its first call.
"""

import copyreg
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial, wraps
from threading import get_ident
from typing import Any, ClassVar, Final

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.frontends.estimator.keras_layers import Nodes, are_symbols, layer_class
from openwafer.training.frontends.loop.keras_trees import is_of_keras

BASES: Final[tuple[type, ...]] = (nn.Module, Optimizer, LRScheduler)
_PLAIN: Final = (bool, int, float, str, type(None), torch.dtype, torch.Size)
Options = Mapping[str, Any]


@dataclass
class Made:
    """An object that a model function has constructed.

    Attributes:
        made: the object.
        options: plain arguments of its constructor, as the last call gave them.
        buffers: copies of its buffers behind its constructor.
    """

    made: Any
    options: Options
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)

    @cached_property
    def again(self) -> type:
        """Its class, with a constructor that makes nothing."""
        return _constructed_by(type(self.made), self._meet)

    def _meet(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Take the arguments of a later call: options of an optimizer may be others."""
        options = _options_of(type(self.made), args, kwargs)
        changed = {
            name: value
            for name, value in options.items()
            if name not in self.options or not _are_same(value, self.options[name])
        }
        for name, value in changed.items():
            if not (isinstance(self.made, Optimizer) and self._set_option(name, value)):
                raise self._another(name, value)
        self.options = options

    def _set_option(self, name: str, value: Any) -> bool:
        """Set an option of an optimizer's groups, ``lr`` of all or ``0.lr`` of the first."""
        index, _, key = name.rpartition(".")
        groups = self.made.param_groups if not index else [self.made.param_groups[int(index)]]
        before = self.options.get(name)
        for group in groups:
            if key not in group:
                return False
            if index or _are_same(group[key], before):
                group[key] = value
        return True

    def _another(self, name: str, value: object) -> OpenwaferError:
        kind = type(self.made).__name__
        return error(
            "estimator-construction",
            f"model_fn constructs its {kind} with {name}={value!r}, and in its first call with "
            f"{name}={self.options.get(name)!r}",
            notes=("what model_fn constructs is made in its first call, and then used again",),
            help=f"give {kind} the same arguments in all calls",
        )


class Template:
    """What a model function has constructed, in its order.

    Attributes:
        made: the objects.
        symbolic: calls of Keras's layers on symbols, each with its result.
        random_state: of torch's CPU generator, behind the last constructor.
    """

    def __init__(self) -> None:
        self.made: list[Made] = []
        self.symbolic: list[tuple[Any, Any]] = []
        self.random_state = torch.get_rng_state()
        self._nodes = Nodes(())

    def __deepcopy__(self, _memo: object) -> "Template":
        # A copy of the model takes the place of the modules by itself.
        return self

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Context of a constructor: its numbers follow those of the constructor before it.

        So weights are those of a script that constructs all of its modules before it calls one.
        """
        others = torch.get_rng_state()
        torch.set_rng_state(self.random_state)
        yield
        self.random_state = torch.get_rng_state()
        torch.set_rng_state(others)

    @contextmanager
    def first_call(self) -> Iterator[None]:
        """Context of the first call, which makes things."""
        with _running(_FirstCall(self)):
            yield
        self._nodes = Nodes(one.made for one in self.made)

    @contextmanager
    def later_call(self) -> Iterator[None]:
        """Context of another call, which gets them."""
        with _running(call := _LaterCall(self)):
            yield
        call.require_all()
        self._nodes.forget_later()

    def of_kind(self, kind: type) -> list[Any]:
        """The objects of a class."""
        return [one.made for one in self.made if isinstance(one.made, kind)]


class _Call:
    """A call of a model function; its depth counts constructors and calls that it is in."""

    depth = 0

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Context of a constructor, or of a call of a layer of Keras."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1


class _FirstCall(_Call):
    def __init__(self, template: Template) -> None:
        self._template = template

    def construct(self, blank: Callable[[], Any], kind: type) -> Any:
        """A new object, which is remembered."""
        found = blank()
        one = Made(found, {})

        def construct(args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
            one.options = _options_of(type(found), args, kwargs)
            with self.inside(), self._template.drawing():
                found.__init__(*args, **kwargs)
            if isinstance(found, nn.Module):
                one.buffers = {name: value.clone() for name, value in found.named_buffers()}

        self._template.made.append(one)
        object.__setattr__(found, "__class__", _constructed_by(type(found), construct))
        return found

    def on_symbols(self, layer: Any, call: Callable[[], Any]) -> Any:
        """Call a layer of Keras on symbols, which tells its shape and its place in a model."""
        with self.inside():
            found = call()
        self._template.symbolic.append((layer, found))
        return found


class _LaterCall(_Call):
    def __init__(self, template: Template) -> None:
        self._made, self._position = template.made, 0
        self._symbolic = iter(template.symbolic)

    def construct(self, blank: Callable[[], Any], kind: type) -> Any:
        """The object of the first call, whose constructor does nothing."""
        if self._position == len(self._made):
            raise _other_order(f"a {kind.__name__}", "nothing more")
        one = self._made[self._position]
        if not isinstance(one.made, kind):
            raise _other_order(f"a {kind.__name__}", f"a {type(one.made).__name__}")
        self._position += 1
        object.__setattr__(one.made, "__class__", one.again)
        return one.made

    def on_symbols(self, layer: Any, _call: Callable[[], Any]) -> Any:
        """What the first call got."""
        called, found = next(self._symbolic, (None, None))
        if called is not layer:
            raise error(
                "estimator-construction",
                f"model_fn calls {layer.name!r} on symbols of Keras, where its first call called "
                f"{'nothing' if called is None else repr(called.name)}",
                help="let model_fn make the same models of Keras in every call",
            )
        return found

    def require_all(self) -> None:
        """Refuse a call that has constructed less than the first one."""
        if self._position < len(self._made):
            raise _other_order(
                "nothing more", f"a {type(self._made[self._position].made).__name__}"
            )


def _other_order(now: str, first: str) -> OpenwaferError:
    return error(
        "estimator-construction",
        f"model_fn constructs {now} where it constructed {first} in its first call",
        notes=("the n-th object that model_fn constructs is that of its first call",),
        help="let model_fn construct the same modules and optimizers, in one order, in every call",
    )


class _Process:
    call: _FirstCall | _LaterCall | None = None
    thread = 0
    bases: ClassVar[list[type]] = []


def _running_here() -> _FirstCall | _LaterCall | None:
    """The call of a model function that this thread is in."""
    return _Process.call if _Process.thread == get_ident() else None


@contextmanager
def _running(call: _FirstCall | _LaterCall) -> Iterator[None]:
    for base in BASES:
        _stand_in(base)
    if (layer := layer_class()) is not None:
        if layer not in _Process.bases:
            layer.__call__ = _called_inside(layer.__call__)
        _stand_in(layer)
    before = _Process.call, _Process.thread
    _Process.call, _Process.thread = call, get_ident()
    try:
        yield
    finally:
        _Process.call, _Process.thread = before


def _called_inside(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call of Keras's layers, in which they build what is their own."""

    @wraps(call)
    def inside(layer: Any, *args: Any, **kwargs: Any) -> Any:
        running = _running_here()
        if running is None:
            return call(layer, *args, **kwargs)
        if not running.depth and are_symbols(args, kwargs):
            return running.on_symbols(layer, partial(call, layer, *args, **kwargs))
        with running.inside():
            return call(layer, *args, **kwargs)

    return inside


def _stand_in(base: type) -> None:
    """Construct what is of a class as the call of a model function says, while there is one."""
    if base in _Process.bases:
        return
    own = vars(base).get("__new__")

    def construct(cls: type, *args: Any, **kwargs: Any) -> Any:
        above: Any = super(base, cls).__new__ if own is None else own.__func__  # type: ignore[arg-type]

        def blank() -> Any:
            return above(cls) if above is object.__new__ else above(cls, *args, **kwargs)

        call = _running_here()
        if call is None or call.depth or (base is nn.Module and _is_met_above(cls)):
            return blank()
        if sys._getframe(1).f_code is copyreg.__newobj__.__code__:  # type: ignore[attr-defined]  # noqa: SLF001
            raise error(
                "estimator-copied-module",
                f"model_fn copies a {cls.__name__}, which would be another one in each call",
                help=f"construct the {cls.__name__} anew, or copy it in a module's __init__",
            )
        return call.construct(blank, cls)

    # For good: a class whose __new__ was taken away again accepts no arguments.
    base.__new__ = staticmethod(construct)  # type: ignore[method-assign, assignment]
    _Process.bases.append(base)


def _is_met_above(kind: type) -> bool:
    """Whether a module is a layer of Keras, whose own constructor has asked the call before.

    Raises:
        OpenwaferError: ``estimator-keras`` where none has.
    """
    if not is_of_keras(kind):
        return False
    if not any(is_of_keras(base) for base in _Process.bases):
        raise error(
            "estimator-keras",
            f"model_fn constructs a {kind.__name__} of Keras, and is the first to import Keras",
            help="import keras at the head of the script",
        )
    return True


def _constructed_by(
    kind: type, construct: Callable[[Sequence[Any], Mapping[str, Any]], None]
) -> type:
    """A class for an object that is about to be constructed, and then is of `kind`."""

    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        object.__setattr__(self, "__class__", kind)
        construct(args, kwargs)

    return type(kind.__name__, (kind,), {"__init__": begin, "__module__": kind.__module__})


def _options_of(kind: type, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Plain arguments of a constructor, and those of an optimizer's groups as ``0.lr``."""
    names = list(inspect.signature(kind).parameters)
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    options = {name: value for name, value in given.items() if _is_plain(value)}
    groups = given.get("params")
    if issubclass(kind, Optimizer) and isinstance(groups, list | tuple):
        for index, group in enumerate(groups):
            if isinstance(group, dict):
                options |= {f"{index}.{k}": v for k, v in group.items() if _is_plain(v)}
    return options


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN) or (isinstance(value, torch.Tensor) and value.ndim == 0)


def _are_same(value: object, other: object) -> bool:
    return type(value) is type(other) and bool(value == other)
