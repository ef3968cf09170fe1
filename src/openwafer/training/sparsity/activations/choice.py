"""How a user says which linear modules skip the zeros of their inputs."""

from enum import StrEnum
from typing import TypeAlias


class ActivationChoice(StrEnum):
    """``auto`` takes all whose input comes from a ReLU or the like."""

    AUTO = "auto"


WrittenActivations: TypeAlias = ActivationChoice | tuple[str, ...]
"""Or globs of the names of modules."""
