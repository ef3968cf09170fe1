"""Native code of PE programs: LLVM text from the IR, compiled once and kept on disk."""

from typing import TYPE_CHECKING

from openwafer.lazy_names import lazy_names

if TYPE_CHECKING:
    from openwafer.sdk.codegen.native import compile_images as compile_images
    from openwafer.sdk.codegen.native import entry_splits as entry_splits

# Loaded when first used: whoever only names an engine needs no LLVM.
__getattr__ = lazy_names(__name__, {"compile_images": "native", "entry_splits": "native"})
