"""A trainer's YAML: its phases, each with a trainer and what it is to do."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from torch import nn
from torch.optim import Optimizer

from openwafer.config import PathLike
from openwafer.config.document import Entry, ListNode, MappingNode, Node, ScalarNode, read
from openwafer.config.expectation import wrong_type
from openwafer.config.reading import (
    gather,
    missing_keys,
    plain,
    read_arguments,
    read_value,
    source_of,
    unknown_key,
)
from openwafer.diagnostics import OpenwaferError, did_you_mean, error
from openwafer.source import SourceText, Span
from openwafer.training.frontends.model_zoo import parts
from openwafer.training.frontends.model_zoo.checkpoints import Checkpoint
from openwafer.training.frontends.model_zoo.loggers import Logging
from openwafer.training.frontends.model_zoo.loops import TrainingLoop
from openwafer.training.frontends.model_zoo.named_code import data_processor, imported, model_maker
from openwafer.training.frontends.model_zoo.precision import MixedPrecision
from openwafer.training.frontends.model_zoo.trainer import LAST, Trainer
from openwafer.training.frontends.present import backends, cstorch
from openwafer.training.frontends.present.loader import DataLoader
from openwafer.training.frontends.present.lr_scheduler import ScalePerParamLR
from openwafer.training.frontends.present.schedulers import Scheduler
from openwafer.training.frontends.scripts.param_groups import param_groups

_WORK: Final = {
    "fit": ("train_dataloader", "val_dataloader", "ckpt_path"),
    "validate": ("val_dataloader", "ckpt_path"),
    "validate_all": ("val_dataloaders", "ckpt_paths"),
}
_FLAT: Final = {
    "train_input": "trainer.fit.train_dataloader",
    "eval_input": "trainer.fit.val_dataloader",
    "model": "trainer.init.model",
    "optimizer": "trainer.init.optimizer, its learning_rate trainer.init.schedulers",
    "sparsity": "trainer.init.sparsity",
    "runconfig": "trainer.init.loop, checkpoint, logging, seed and model_dir",
}
_MOST_LR: Final = 0.1


@dataclass(frozen=True)
class Part:
    """A class of a phase, with its options as they are written.

    Attributes:
        kind: what makes it.
        options: by name.
        span: where its name stands.
    """

    kind: Callable[..., Any]
    options: Mapping[str, Any]
    span: Span

    def made(self, *given: Any, **more: Any) -> Any:
        """The object; its mistakes are told where it is written."""
        with placed(self.span):
            return self.kind(*given, **self.options, **more)


@dataclass(frozen=True)
class Phase:
    """One trainer, and what it is to do.

    Attributes:
        init: parts and values by the keys of ``init``.
        work: loaders and checkpoints by the keys of ``fit``, ``validate`` and ``validate_all``.
        span: where ``init`` stands.
    """

    init: Mapping[str, Any]
    work: Mapping[str, Mapping[str, Any]]
    span: Span

    def trainer(self, device: str | None = None, model_dir: PathLike | None = None) -> Trainer:
        """Make the trainer.

        Args:
            device: in place of the one that is written.
            model_dir: likewise.

        Raises:
            OpenwaferError: ``trainer-device``, and what parts and model raise, with their places.
        """
        init = self.init
        parts_of = {
            n: init[n].made() for n in ("precision", "loop", "checkpoint", "logging") if n in init
        }
        with placed(self.span):
            return Trainer(
                backend=self._backend(device),
                model_dir=model_dir or init.get("model_dir", "model_dir"),
                model=init["model"],
                optimizer=init.get("optimizer"),
                schedulers=init.get("schedulers"),
                sparsity=init.get("sparsity"),
                callbacks=[part.made() for part in init["callbacks"]],
                loggers=[part.made() for part in init["loggers"]],
                seed=init.get("seed"),
                **parts_of,
            )

    def _backend(self, device: str | None) -> backends.Backend:
        options = dict(self.init.get("backend") or {})
        kind = device or self.init.get("device") or options.get("backend_type")
        options.pop("backend_type", None)
        if kind is None:
            raise error(
                "trainer-device",
                "no device is written",
                help="write device: CSX into init, or give --target_device CSX",
            )
        made = cstorch.backend(kind, **options)
        assert made is not None
        return made


@contextmanager
def placed(span: Span) -> Iterator[None]:
    """Context whose mistakes are told with a place of the YAML, where they have none."""
    try:
        yield
    except OpenwaferError as found:
        raise OpenwaferError(
            *(replace(one, span=one.span or span) for one in found.diagnostics)
        ) from found


def read_phases(path: PathLike) -> list[Phase]:
    """The phases of a file, one after the other; nothing is made yet.

    Raises:
        OpenwaferError: with all mistakes of the file at once: ``config-*``, ``trainer-unknown``,
            ``trainer-refused``, ``trainer-import``.
    """
    return parse_phases(source_of(path))


def parse_phases(source: SourceText) -> list[Phase]:
    """As :func:`read_phases`, of a text."""
    root = read(source)
    if not isinstance(root, MappingNode):
        raise wrong_type("a mapping with the key trainer", root)
    if "trainer" not in root.entries:
        raise _flat(source, root)
    written = _section(root, ("trainer",), required=("trainer",))["trainer"].value
    if not isinstance(written, ListNode):
        return [_phase(written, root.entries["trainer"].key_span)]
    return gather(partial(_listed_phase, item) for item in written.items)


def _flat(source: SourceText, root: MappingNode) -> OpenwaferError:
    known = {key: entry for key, entry in root.entries.items() if key in _FLAT}
    if not known:
        help = "write trainer: {init: ..., fit: ...}"
        return missing_keys(("trainer",), Span(source, 0, 0), help=help)
    mistakes = [
        error(
            "trainer-version",
            f"'{key}' is a key of an older version of the Model Zoo's YAML",
            span=entry.key_span,
            help=f"it is now {_FLAT[key]}",
        )
        for key, entry in known.items()
    ]
    return OpenwaferError(*(one.diagnostics[0] for one in mistakes))


def _listed_phase(node: Node) -> Phase:
    entry = _section(node, ("trainer",), required=("trainer",))["trainer"]
    return _phase(entry.value, entry.key_span)


def _section(
    node: Node, keys: Sequence[str], required: Sequence[str] = (), place: Span | None = None
) -> Mapping[str, Entry]:
    """Entries of a mapping that has some keys and no other; without those that hold nothing."""
    if not isinstance(node, MappingNode):
        raise wrong_type("a mapping", node)
    unknown = [unknown_key(key, e, keys) for key, e in node.entries.items() if key not in keys]
    if unknown:
        raise OpenwaferError(*(one.diagnostics[0] for one in unknown))
    written = {key: e for key, e in node.entries.items() if not _is_nothing(e.value)}
    missing = [key for key in required if key not in written]
    if missing:
        raise missing_keys(missing, place or node.span, help="write them under this key")
    return written


def _is_nothing(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.value is None


def _phase(node: Node, place: Span) -> Phase:
    sections = _section(node, ("init", *_WORK), required=("init",), place=place)
    init = _section(sections["init"].value, [*_INIT_READERS], ("model",), sections["init"].key_span)
    model_name = _model_name(init["model"])
    readers: dict[str, Callable[[], Any]] = {
        key: partial(_INIT_READERS[key], entry) for key, entry in init.items()
    }
    for key, empty in (("callbacks", _callbacks), ("loggers", _loggers)):
        readers.setdefault(key, partial(empty, None))
    works = {
        key: partial(_work, sections[key], _WORK[key], model_name)
        for key in _WORK
        if key in sections
    }
    *found, work = gather(
        [*readers.values(), lambda: dict(zip(works, gather(works.values()), strict=True))]
    )
    values = dict(zip(readers, found, strict=True))
    return Phase(values, work, sections["init"].key_span)


def _arguments(kind: Callable[..., Any], entry: Entry) -> Part:
    return Part(kind, read_arguments(entry.value, kind, entry.key_span), entry.key_span)


def _model_name(entry: Entry) -> str:
    node = entry.value
    if not isinstance(node, MappingNode):
        raise wrong_type("a mapping with the key name", node)
    if "name" not in node.entries:
        older = node.entries.get("model_name")
        raise missing_keys(
            ("name",),
            entry.key_span if older is None else older.key_span,
            help="model_name is now name" if older else "write the dotted path of a class",
        )
    return str(read_value(node.entries["name"], str))


def _without(entry: Entry, key: str) -> MappingNode:
    assert isinstance(entry.value, MappingNode)
    rest = {name: one for name, one in entry.value.entries.items() if name != key}
    return MappingNode(entry.value.span, rest)


def _model(entry: Entry) -> Callable[[], nn.Module]:
    name = _model_name(entry)
    assert isinstance(entry.value, MappingNode)
    span = entry.value.entries["name"].value.span
    return model_maker(name, _without(entry, "name"), span)


def _named_part(node: Node, known: Mapping[str, type[Any]], what: str) -> tuple[str, Entry]:
    """The one name of a mapping, as one of ours or a dotted path, and what stands under it."""
    if not isinstance(node, MappingNode) or len(node.entries) != 1:
        raise wrong_type(f"a mapping of the name of one {what} to its options", node)
    ((name, entry),) = node.entries.items()
    ours = {one.lower(): one for one in (*known, *parts.UNREAD, *parts.REFUSED)}
    found = ours.get(str(name).lower(), str(name))
    if found in parts.REFUSED:
        raise error(
            "trainer-refused",
            f"the {what} {found} is not here",
            span=entry.key_span,
            help=parts.REFUSED[found],
        )
    if found not in known and found not in parts.UNREAD and "." not in found:
        raise error(
            "trainer-unknown",
            f"no {what} '{name}' is known",
            span=entry.key_span,
            help=did_you_mean(found, known) + "; one of your own is named by its dotted path",
        )
    return found, entry


def _parts_of(
    entry: Entry | None, known: Mapping[str, type[Any]], what: str, defaults: Mapping[str, Any]
) -> list[Part]:
    nodes = [] if entry is None else _items(entry.value)
    named = gather(partial(_named_part, node, known, what) for node in nodes)
    written = {name for name, _ in named}
    place = named[0][1].key_span if named else Span(SourceText("defaults", ""), 0, 0)
    found = [Part(known[n], options, place) for n, options in defaults.items() if n not in written]
    wanted = [(n, e) for n, e in named if n not in parts.UNREAD and not _is_nothing(e.value)]
    return found + gather(partial(_part, name, known, entry) for name, entry in wanted)


def _part(name: str, known: Mapping[str, type[Any]], entry: Entry) -> Part:
    return _arguments(_kind(name, known, entry), entry)


def _kind(name: str, known: Mapping[str, type[Any]], entry: Entry) -> Callable[..., Any]:
    return known[name] if name in known else imported(name, entry.key_span)


def _items(node: Node) -> Sequence[Node]:
    if not isinstance(node, ListNode):
        raise wrong_type("a list", node)
    return node.items


def _callbacks(entry: Entry | None) -> list[Part]:
    return _parts_of(entry, parts.CALLBACKS, "callback", parts.DEFAULT_CALLBACKS)


def _loggers(entry: Entry | None) -> list[Part]:
    return _parts_of(entry, parts.LOGGERS, "logger", {"ProgressLogger": {}})


def _optimizer(entry: Entry) -> Callable[[nn.Module], Optimizer]:
    name, written = _named_part(entry.value, parts.OPTIMIZERS, "optimizer")
    node, given = written.value, {"params"}
    groups: Any = ()
    if isinstance(node, MappingNode):
        entries = dict(node.entries)
        if "learning_rate" in entries:
            entries["lr"] = entries.pop("learning_rate")
        if "params" in entries:
            groups = plain(entries.pop("params").value)
        node = MappingNode(node.span, entries)
        if "lr" not in entries:
            given.add("lr")
    kind = _kind(name, parts.OPTIMIZERS, written)
    options = read_arguments(node, kind, written.key_span, given)
    options.setdefault("lr", _MOST_LR)
    decay = float(options.get("weight_decay", 0.0) or 0.0)  # type: ignore[arg-type]
    listed = [groups] if isinstance(groups, Mapping) else groups
    part = Part(kind, options, written.key_span)

    def made(model: nn.Module) -> Optimizer:
        with placed(written.key_span):
            chosen = param_groups(model, decay, listed)
        optimizer: Optimizer = part.made(chosen)
        return optimizer

    return made


def _schedulers(entry: Entry) -> list[Callable[[Optimizer], Scheduler]]:
    makers = gather(partial(_scheduler, node) for node in _listed(entry.value))
    return [partial(_scaled, make) for make in makers]


def _scaled(make: Callable[[Optimizer], Scheduler], optimizer: Optimizer) -> Scheduler:
    """A scheduler whose rate groups multiply where they say so; see :func:`param_groups`."""
    made = make(optimizer)
    is_scaled = any("adjust_learning_rate" in group for group in optimizer.param_groups)
    is_plain = made.param_group_key == "lr" and not isinstance(made, ScalePerParamLR)
    return ScalePerParamLR(optimizer, made) if is_scaled and is_plain else made


def _scheduler(node: Node) -> Callable[[Optimizer], Scheduler]:
    name, entry = _named_part(node, parts.SCHEDULERS, "scheduler")
    kind = _kind(name, parts.SCHEDULERS, entry)
    inner = entry.value.entries.get("schedulers") if isinstance(entry.value, MappingNode) else None
    if inner is not None:
        return _sequence(kind, entry, inner)
    options = plain(entry.value) or {}
    if not isinstance(options, Mapping):
        raise wrong_type("a mapping", entry.value)
    part = Part(kind, options, entry.key_span)
    return lambda optimizer: _schedule(part, optimizer)


def _schedule(part: Part, *given: Any) -> Scheduler:
    with placed(part.span):
        try:
            made: Scheduler = part.made(*given)
        except TypeError as cause:
            raise error(
                "config-unknown-key",
                str(cause).partition("__init__() ")[2] or str(cause),
                help="see the schedule's arguments",
            ) from cause
    return made


def _sequence(kind: Any, entry: Entry, inner: Entry) -> Callable[[Optimizer], Scheduler]:
    nodes = _items(inner.value)
    makers = gather(partial(_scheduler, node) for node in nodes)
    options: Any = plain(_without(entry, "schedulers"))
    if kind.__name__.startswith("Sequential") and "milestones" not in options:
        options["milestones"] = _milestones(nodes[:-1])
    part = Part(kind, options, entry.key_span)

    def made(optimizer: Optimizer) -> Scheduler:
        schedulers = [make(optimizer) for make in makers]
        if kind.__name__.startswith("Sequential"):
            return _schedule(part, optimizer, schedulers)
        return _schedule(part, schedulers)

    return made


def _milestones(nodes: Sequence[Node]) -> list[int]:
    found, reached = list[int](), 0
    for node in nodes:
        _, entry = _named_part(node, parts.SCHEDULERS, "scheduler")
        options: Any = plain(entry.value)
        if "total_iters" not in (options or {}):
            raise missing_keys(
                ("total_iters",),
                entry.key_span,
                help="a schedule that another one follows says how long it is",
            )
        reached += options["total_iters"]
        found.append(reached)
    return found


def _sparsity(entry: Entry) -> Callable[[], Any]:
    config = plain(entry.value)

    def made() -> Any:
        with placed(entry.place):
            return cstorch.sparse.configure(config)

    return made


def _autorestart(entry: Entry) -> None:
    options = plain(entry.value)
    if isinstance(options, Mapping) and options.get("max_num_restarts"):
        raise error(
            "trainer-refused",
            "autorestart is not here",
            span=entry.key_span,
            help="call the command again: it goes on from the last checkpoint",
        )


_INIT_READERS: Final[Mapping[str, Callable[[Entry], Any]]] = {
    "backend": lambda entry: plain(entry.value),
    "device": partial(read_value, kind=str),
    "seed": partial(read_value, kind=int),
    "model_dir": partial(read_value, kind=str),
    "model": _model,
    "optimizer": _optimizer,
    "schedulers": _schedulers,
    "precision": partial(_arguments, MixedPrecision),
    "sparsity": _sparsity,
    "loop": partial(_arguments, TrainingLoop),
    "checkpoint": partial(_arguments, Checkpoint),
    "logging": partial(_arguments, Logging),
    "callbacks": _callbacks,
    "loggers": _loggers,
    "autorestart": _autorestart,
}


def _work(entry: Entry, keys: Sequence[str], model_name: str) -> Mapping[str, Any]:
    loaders = [key for key in keys if "dataloader" in key]
    required = () if loaders[0].endswith("s") else loaders[:1]
    written = _section(entry.value, keys, required, entry.key_span)
    assert isinstance(entry.value, MappingNode)
    found: dict[str, Any] = {}
    for key in keys:
        if key in loaders:
            nodes = _listed(written[key].value) if key in written else []
            made = gather(partial(_loader, node, written[key], model_name) for node in nodes)
            found[key] = made[0] if key.startswith("train") or keys[0] == "val_dataloader" else made
        else:
            is_written = key in entry.value.entries
            found[key] = plain(entry.value.entries[key].value) if is_written else LAST
    return found


def _listed(node: Node) -> Sequence[Node]:
    return node.items if isinstance(node, ListNode) else [node]


def _loader(node: Node, entry: Entry, model_name: str) -> DataLoader:
    if not isinstance(node, MappingNode):
        raise wrong_type("a mapping with the key data_processor", node)
    if "data_processor" not in node.entries:
        raise missing_keys(
            ("data_processor",),
            entry.key_span,
            help="write the dotted path of a class or function that returns batches",
        )
    named = node.entries["data_processor"]
    rest = _without(Entry(entry.key_span, node), "data_processor")
    name = str(read_value(named, str))
    return DataLoader(data_processor(name, rest, named.value.span, model_name))


def run_phases(
    phases: Sequence[Phase],
    command: str,
    device: str | None = None,
    model_dir: PathLike | None = None,
    ckpt_path: Any = LAST,
) -> list[Trainer]:
    """Let each phase's trainer do its work, one after the other.

    Args:
        phases: see :func:`read_phases`.
        command: ``"fit"``, ``"validate"`` or ``"validate_all"``.
        device, model_dir: in place of those that are written.
        ckpt_path: likewise, for the first phase.

    Raises:
        OpenwaferError: ``config-missing-key`` of a phase without such work; what trainers raise.
    """
    trainers = []
    for phase in phases:
        if command not in phase.work:
            message = f"missing beside this: {command}"
            help = f"write {command} with its loader, as in {command}: {{{_WORK[command][0]}: ...}}"
            raise error("config-missing-key", message, span=phase.span, help=help)
        work = dict(phase.work[command])
        if ckpt_path is not LAST and phase is phases[0]:
            work["ckpt_paths" if command == "validate_all" else "ckpt_path"] = ckpt_path
        trainer = phase.trainer(device, model_dir)
        getattr(trainer, command)(**work)
        trainer.finish()
        trainers.append(trainer)
    return trainers
