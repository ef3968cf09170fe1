"""What the command line tells the compiler besides the program itself."""

from dataclasses import dataclass
from pathlib import Path

from openwafer.sdk.arch.generation import GENERATIONS, Arch, Generation


@dataclass(frozen=True)
class CompileOptions:
    """Options of one compilation; each stands for the `cslc` flag of its name.

    Attributes:
        fabric_dims: columns and rows of the whole fabric; None takes the least that will do.
        fabric_offsets: column and row of the rectangle's north-west PE; None with memcpy takes the
            least that leaves room for it, and ``(0, 0)`` without.
        params: name and value as written, for instance ``("M", "4")``.
        colors: name and routable color.
        is_memcpy: the host copies and launches (``--memcpy``).
        channels: memcpy channels, 1 to 16.
        width_west_buf: columns of buffers between the host's links and the rectangle.
        width_east_buf: the same on the east side.
        import_paths: folders that ``<name>`` imports are looked up in.
        fp16_format: ``f16``, ``cb16`` or ``bf16``.
        max_inlined_iterations: bound of a loop that is unrolled.
        comptime_func_depth_limit: bound of nested calls at compile time.
        comptime_step_limit: bound of calls and iterations at compile time, in one image or layout.
        release: of the vendor's SDK that the program is for, ``1.4`` or ``2.10``; the program tells
            where it is empty.
        are_warnings_errors: every warning is an error.
        is_strict: what the vendor's documentation forbids is an error.
    """

    arch: Arch = Arch.WSE2
    fabric_dims: tuple[int, int] | None = None
    fabric_offsets: tuple[int, int] | None = None
    params: tuple[tuple[str, str], ...] = ()
    colors: tuple[tuple[str, int], ...] = ()
    is_memcpy: bool = False
    channels: int = 1
    width_west_buf: int = 0
    width_east_buf: int = 0
    import_paths: tuple[Path, ...] = ()
    fp16_format: str = "f16"
    max_inlined_iterations: int = 50
    comptime_func_depth_limit: int = 256
    comptime_step_limit: int = 50_000_000
    release: str = ""
    are_warnings_errors: bool = False
    is_strict: bool = False

    @property
    def generation(self) -> Generation:
        """Numbers of the wafer compiled for."""
        return GENERATIONS[self.arch]
