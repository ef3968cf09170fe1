"""How initial values and learning rates follow the width of a model."""

from enum import StrEnum


class Parametrization(StrEnum):
    """By which rule a model of another width is trained."""

    STANDARD = "standard"  # every setting as it is written, at every width
    MUP = "mup"  # settings are those of a base model, and are scaled to the model's widths
