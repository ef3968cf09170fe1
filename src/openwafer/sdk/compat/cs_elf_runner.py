"""The vendor's runner of the first releases: known by name, to say what takes its place."""

from typing import Any

from openwafer.diagnostics import error

__all__ = ["CSELFRunner", "ELFMemory"]


class CSELFRunner:
    """Raises OpenwaferError: tensors that enter over the edges of a rectangle are not simulated."""

    def __init__(self, *_given: Any, **_options: Any) -> None:
        raise error(
            "no-elf-runner",
            f"{type(self).__name__} of the first SDK releases is not provided: it reads ELF files, "
            "which this compiler does not write",
            help="use SdkRuntime with <memcpy/memcpy>, or memcpy_required=False and read_symbol",
        )


class ELFMemory(CSELFRunner):
    """Raises OpenwaferError, for the same reason."""
