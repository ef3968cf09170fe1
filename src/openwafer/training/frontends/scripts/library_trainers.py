"""Trainers of libraries in a script of theirs: each streams what it trains, and nobody wrote it."""

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Final

from openwafer.training.frontends.scripts.program import ScriptProgram

STRATEGY: Final = "streamed"
"""Under this name Lightning has the strategy, for scripts that choose one by an argument."""
# Lightning's own variable: what a Trainer is not told.
_STRATEGY_VARIABLE: Final = "PL_TRAINER_STRATEGY"
_FRONTENDS: Final = __name__.rpartition(".")[0].rpartition(".")[0]
_TWIN, _LIGHTNING = "pytorch_lightning", "lightning.pytorch"


def install() -> None:
    """Let trainers stream from now on, as far as the environment says; see :class:`Room`."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _of_transformers(module: ModuleType) -> None:
    """Give each Trainer the callback."""
    program = ScriptProgram.of_environment()
    kind = import_module(f"{_FRONTENDS}.hugging_face").StreamingCallback

    def begin(self: object) -> None:
        kind.__init__(self, program.device_memory, folder=program.room.folder)

    # A Trainer constructs what is a class, one for itself.
    module.DEFAULT_CALLBACKS.append(type(kind.__name__, (kind,), {"__init__": begin}))


def _of_lightning(module: ModuleType) -> None:
    """Register the strategy, and let it be what a Trainer takes that is told of none."""
    program = ScriptProgram.of_environment()
    strategy = import_module(f"{_FRONTENDS}.lightning").StreamedStrategy
    given = {"device_memory": program.device_memory, "folder": program.room.folder}
    registry = import_module(f"{module.__name__}.strategies").StrategyRegistry
    registry.register(STRATEGY, strategy, "weights stream", **given)
    os.environ.setdefault(_STRATEGY_VARIABLE, STRATEGY)


_BEHIND: Final[dict[str, Callable[[ModuleType], None]]] = {
    "transformers.trainer": _of_transformers,
    "lightning.pytorch": _of_lightning,
}
"""What is done when a module has been imported."""


class _Finder(MetaPathFinder):
    """Finds modules as ever, and does what comes behind their import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module of the table, and of Lightning's twin; None for all others."""
        root, _, rest = fullname.partition(".")
        if root == _TWIN and find_spec("lightning") is not None:
            return ModuleSpec(fullname, _Same(".".join(filter(None, (_LIGHTNING, rest)))))
        if fullname not in _BEHIND or (spec := PathFinder.find_spec(fullname, path)) is None:
            return None
        loader, behind = spec.loader, _BEHIND[fullname]
        assert loader is not None
        execute = loader.exec_module

        def execute_all(module: ModuleType) -> None:
            execute(module)
            behind(module)

        vars(loader)["exec_module"] = execute_all
        return spec


class _Same(Loader):
    """Gives another name to a module: Lightning has its own code twice, of which one streams."""

    def __init__(self, name: str) -> None:
        self._module = import_module(name)
        self._spec = self._module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
