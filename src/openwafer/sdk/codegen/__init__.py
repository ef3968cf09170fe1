"""Native code of PE programs: LLVM text from the IR, compiled once and kept on disk."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from openwafer.sdk.codegen.native import compile_images as compile_images
    from openwafer.sdk.codegen.native import entry_splits as entry_splits

# Loaded when first used: whoever only names an engine needs no LLVM.
_OF_NATIVE = ("compile_images", "entry_splits")


def __getattr__(name: str) -> Any:
    if name not in _OF_NATIVE:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'", name=name)
    return getattr(importlib.import_module(f"{__name__}.native"), name)
