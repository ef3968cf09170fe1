"""Provides the vendor's modules to the scripts of this process."""

import importlib
import sys
from collections.abc import Sequence
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import MappingProxyType, ModuleType
from typing import Any, Final

PACKAGES: Final = frozenset(
    (
        "cerebras",
        "cerebras.sdk",
        "cerebras.sdk.debug",
        "cerebras.sdk.runtime",
        "cerebras.geometry",
        "cerebras.elf",
        "cerebras.elf.cs_elf_runner",
        "cerebras.elf.cs_elf_runner.lib",
        "cerebras.appliance",
        "cerebras.appliance.pb",
        "cerebras.appliance.pb.sdk",
        "cerebras_appliance",
        "cerebras_appliance.sdk",
        "cerebras_appliance.pb",
        "cerebras_appliance.pb.sdk",
    )
)
"""Names that hold other modules; `cerebras_appliance` is the older name of the client's."""

MODULES: Final = MappingProxyType(
    {
        "cerebras.sdk.runtime.sdkruntimepybind": "openwafer.sdk.compat.sdkruntimepybind",
        "cerebras.sdk.runtime.runtime_utils": "openwafer.sdk.compat.runtime_utils",
        "cerebras.sdk.sdk_utils": "openwafer.sdk.compat.sdk_utils",
        "cerebras.elf.cself": "openwafer.sdk.compat.cs_elf_runner",
        "cerebras.elf.cs_elf_runner": "openwafer.sdk.compat.cs_elf_runner",
        "cerebras.elf.cs_elf_runner.lib.csl_utils": "openwafer.sdk.compat.cs_elf_runner",
        "cerebras.sdk.debug.debug_util": "openwafer.sdk.compat.debug_util",
        "cerebras.sdk.client": "openwafer.sdk.compat.client",
        "cerebras.geometry.geometry": "openwafer.sdk.compat.geometry",
        "cerebras.appliance.logger": "openwafer.sdk.compat.logger",
        "cerebras.appliance.pb.sdk.sdk_common_pb2": "openwafer.sdk.compat.transfer_enums",
        "cerebras_appliance.sdk": "openwafer.sdk.compat.client",
        "cerebras_appliance.sdk.debug_util": "openwafer.sdk.compat.debug_util",
        "cerebras_appliance.sdk.sdk_utils": "openwafer.sdk.compat.sdk_utils",
        "cerebras_appliance.logger": "openwafer.sdk.compat.logger",
        "cerebras_appliance.pb.sdk.sdk_common_pb2": "openwafer.sdk.compat.transfer_enums",
    }
)
"""The vendor's modules and ours in their place."""


class _Loader(Loader):
    """Gives a module the public names of another, each when it is first asked for."""

    def __init__(self, source: str | None) -> None:
        self._source = source

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        if self._source is not None:
            source = importlib.import_module(self._source)
            vars(module).update(
                __doc__=source.__doc__,
                __all__=source.__all__,
                __getattr__=partial(_public, module.__name__, source),
            )


def _public(module: str, source: ModuleType, name: str) -> Any:
    if name not in source.__all__:
        raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
    return getattr(source, name)


class VendorFinder(MetaPathFinder):
    """Finds the modules of `PACKAGES` and `MODULES`."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return a spec for the vendor's names, None for all others."""
        if fullname in PACKAGES or fullname in MODULES:
            loader = _Loader(MODULES.get(fullname))
            return ModuleSpec(fullname, loader, is_package=fullname in PACKAGES)
        return None


def install() -> None:
    """Provide the vendor's modules from now on, before any that is installed."""
    if not any(isinstance(finder, VendorFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, VendorFinder())
