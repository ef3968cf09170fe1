"""Modules under the names that scripts of others import; in one process, installed nowhere."""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Loader(Loader):
    """Gives a module the public names of another, each when it is first asked for."""

    def __init__(self, source: str | None, children: Sequence[str]) -> None:
        self._source, self._children = source, children

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if self._source is None:
            return
        source = importlib.import_module(self._source)
        vars(module).update(
            __doc__=source.__doc__,
            __all__=source.__all__,
            __getattr__=partial(_public, module.__name__, source, self._children),
        )
        # As a package's "from .AdamW import AdamW": the class hides the module of its name.
        for name in filter(set(source.__all__).__contains__, self._children):
            if isinstance(getattr(source, name), type):
                importlib.import_module(f"{module.__name__}.{name}")
                vars(module)[name] = getattr(source, name)


def _public(module: str, source: ModuleType, children: Sequence[str], name: str) -> Any:
    if name not in source.__all__:
        known = ", ".join(sorted(source.__all__))
        raise AttributeError(
            f"module {module!r} has no attribute {name!r}; it has {known}", name=name
        )
    value = getattr(source, name)
    if isinstance(value, ModuleType) and name in children:
        return importlib.import_module(f"{module}.{name}")
    return value


class ForeignFinder(MetaPathFinder):
    """Finds modules by a table of names.

    Args:
        packages: names that hold other modules.
        modules: names, and the modules of ours in their place, whose ``__all__`` is what they have.
    """

    def __init__(self, packages: AbstractSet[str], modules: Mapping[str, str]) -> None:
        self._packages, self.modules = packages, modules

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return a spec for the names of the table, None for all others.

        A package with code of its own that a script brings is found as ever, and is only given
        the modules below it.
        """
        if fullname not in self.modules and (
            fullname not in self._packages or _has_code(fullname, path)
        ):
            return None
        below = f"{fullname}."
        children = [n.removeprefix(below) for n in self.modules if n.startswith(below)]
        loader = _Loader(self.modules.get(fullname), children)
        spec = ModuleSpec(fullname, loader, is_package=fullname in self._packages)
        if fullname in self._packages and fullname not in self.modules:
            spec.submodule_search_locations = _folders_of(fullname, path or sys.path)
        return spec


def _has_code(package: str, path: Sequence[str] | None) -> bool:
    """Whether a finder of another has it, as those of packages that are installed editable."""
    others = (one for one in sys.meta_path if not isinstance(one, ForeignFinder))
    specs = (one.find_spec(package, path) for one in others if hasattr(one, "find_spec"))
    found = next(filter(None, specs), None)
    return found is not None and found.loader is not None


def _folders_of(package: str, path: Sequence[str]) -> list[str]:
    """Where others have modules of a package of which no module is ours."""
    folders = (os.path.join(entry, package.rpartition(".")[2]) for entry in path)
    return [folder for folder in folders if os.path.isdir(folder)]


def install(packages: AbstractSet[str], modules: Mapping[str, str]) -> None:
    """Provide the modules from now on, before any that is installed; see :class:`ForeignFinder`."""
    if not any(finder.modules is modules for finder in _installed()):
        sys.meta_path.insert(0, ForeignFinder(packages, modules))


def names_in(module: str) -> Sequence[str]:
    """What a module of an installed table has; empty where there is none of this name."""
    sources = [finder.modules[module] for finder in _installed() if module in finder.modules]
    return sorted(importlib.import_module(sources[0]).__all__) if sources else ()


def _installed() -> list[ForeignFinder]:
    return [finder for finder in sys.meta_path if isinstance(finder, ForeignFinder)]
