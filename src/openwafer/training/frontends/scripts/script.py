"""Runs a script as ``openwafer python`` does: vendors' modules are there, and trainers stream."""

from collections.abc import Sequence
from types import TracebackType

from openwafer import foreign_modules, foreign_scripts
from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends.scripts import library_trainers
from openwafer.training.frontends.scripts.vendor_names import MODULES, PACKAGES


def run_script(arguments: Sequence[str]) -> None:
    """Run the script that the first argument names, in this process, as ``__main__``.

    Args:
        arguments: the script, then its own arguments.

    Raises:
        OpenwaferError: no script is named, or there is none. What the script raises passes.
    """
    script = foreign_scripts.prepare(arguments, "openwafer python train.py --steps 100")
    foreign_modules.install(PACKAGES, MODULES)
    library_trainers.install()
    try:
        foreign_scripts.run_as_main(script, compile(script.read_bytes(), str(script), "exec"))
    except OpenwaferError as found:
        raise foreign_scripts.at_line_of_script(found, script) from found


def show_mistake(
    _kind: type[BaseException], mistake: BaseException, _trace: TracebackType | None
) -> None:
    """Print what ended a script, for `sys.excepthook`, from its first line on."""
    foreign_scripts.show_mistake(mistake, (), "openwafer python")
