"""Provides the vendor's modules to the scripts of this process."""

from types import MappingProxyType
from typing import Final

from openwafer import foreign_modules

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


def install() -> None:
    """Provide the vendor's modules from now on, before any that is installed."""
    foreign_modules.install(PACKAGES, MODULES)
