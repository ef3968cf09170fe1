"""The compiled artifact: all that the compiler and the simulator have in common."""

from typing import Final

FILE_NAME: Final = "openwafer-program.zip"
"""Of a program, in the folder ``bin`` of what a compiler writes."""
