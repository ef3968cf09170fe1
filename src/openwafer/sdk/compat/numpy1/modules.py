"""A script and the modules beside it, run with numpy 1's operators; installed ones keep theirs."""

import sys
import sysconfig
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

import openwafer
from openwafer import foreign_scripts
from openwafer.sdk.compat.numpy1 import rewriting

_INSTALLED: Final = ("site-packages", "dist-packages")
_PYTHON: Final = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
_OWN: Final = Path(openwafer.__file__).parent


class _Loader(SourceFileLoader):
    """Compiles a module anew each time: what Python keeps of it has Python's operators."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return rewriting.compiled(self.get_data(path), path)


class ScriptFinder(MetaPathFinder):
    """Finds the modules that are a script's own: neither Python's, nor installed, nor ours."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return a spec for a file of the script's author, None for all others."""
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader:
            return None
        origin = spec.loader.get_filename(fullname)
        if not _is_script(Path(origin)):
            return None
        spec.loader = _Loader(fullname, origin)
        return spec


def _is_script(path: Path) -> bool:
    if any(part in _INSTALLED for part in path.parts):
        return False
    return not any(path.is_relative_to(folder) for folder in (*_PYTHON, _OWN))


def run_as_main(script: Path) -> None:
    """Run a file as ``__main__``. What it raises passes."""
    rewriting.install()
    if not any(isinstance(finder, ScriptFinder) for finder in sys.meta_path):
        place = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else 0
        sys.meta_path.insert(place, ScriptFinder())
    foreign_scripts.run_as_main(script, rewriting.compiled(script.read_bytes(), str(script)))
