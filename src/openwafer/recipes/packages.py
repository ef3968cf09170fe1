"""Where the packages are that carry what recipes are trained on."""

from importlib.util import find_spec
from pathlib import Path


def folder_of(package: str) -> Path:
    """The folder of an installed package, which is not imported for it."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])
