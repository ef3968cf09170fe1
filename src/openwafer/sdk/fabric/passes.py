"""What numba does to a function of the simulator's core, which is integers, loops and calls.

A pipeline of one's own is documented; which passes there are is not, so the version is pinned.
"""

from typing import Any, Final

from numba.core.compiler import CompilerBase
from numba.core.compiler_machinery import PassManager
from numba.core.typed_passes import (
    IRLegalization,
    NativeLowering,
    NoPythonBackend,
    NopythonTypeInference,
    PreLowerStripPhis,
)
from numba.core.untyped_passes import FixupArgs, IRProcessing, ReconstructSSA, TranslateByteCode

NAME: Final = "integers and loops"
NEEDED: Final = (
    *(TranslateByteCode, FixupArgs, IRProcessing, ReconstructSSA),
    *(NopythonTypeInference, PreLowerStripPhis),
    *(IRLegalization, NativeLowering, NoPythonBackend),
)
"""In numba's order. Those for closures, arrays and overloads take time and find nothing."""


class Passes(CompilerBase):  # type: ignore[misc]
    """The pipeline of :data:`NEEDED`."""

    def define_pipelines(self) -> list[Any]:
        """The one that there is."""
        passes = PassManager(NAME)
        for each in NEEDED:
            passes.add_pass(each, each.__name__)
        passes.finalize()
        return [passes]
