"""How a saved model is pruned at once, and on what texts its inputs are looked at."""

from dataclasses import dataclass
from enum import StrEnum

from openwafer.config import InvalidFieldError, convert_fields
from openwafer.training.sparsity.masks.structures import Blocks
from openwafer.training.sparsity.options import SparsityGroup


class PruningMethod(StrEnum):
    """What decides which weights are kept."""

    MAGNITUDE = "magnitude"
    RANDOM = "random"
    WANDA = "wanda"
    SPARSEGPT = "sparsegpt"

    @property
    def reads_inputs(self) -> bool:
        """Whether it looks at what the weights are multiplied by."""
        return self in (PruningMethod.WANDA, PruningMethod.SPARSEGPT)


@dataclass(frozen=True)
class Pruning:
    """Which weights of a model become zero.

    Attributes:
        sparsity: share of zeros in each weight, in [0, 1); may be left out beside n:m.
        method: see :class:`PruningMethod`.
        structure: 2:4 keeps two of every four weights of one output; 4x4 keeps whole blocks.
        filters: globs of whole parameter names; none for all weights of linear modules but heads
            and routers.
        seed: of random masks.
    """

    sparsity: float | None = None
    method: PruningMethod = PruningMethod.MAGNITUDE
    structure: str | None = None
    filters: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        convert_fields(self)
        structure = self.group.masks
        if self.method.reads_inputs and isinstance(structure, Blocks):
            raise InvalidFieldError(
                "structure",
                f"{self.method} ranks single weights and cannot keep blocks of {self.structure}",
                help="choose n:m, such as 2:4, or the method magnitude",
            )

    @property
    def group(self) -> SparsityGroup:
        """The same as it is written in a run's config."""
        return SparsityGroup(
            self.sparsity, param_filter=self.filters or None, structure=self.structure
        )


@dataclass(frozen=True)
class Calibration:
    """Texts on which the inputs of weights are looked at.

    Attributes:
        texts: files, folders and globs of texts, or ``.jsonl`` and ``.parquet`` files with a column
            ``text``; none takes what a run was trained on.
        num_samples: most pieces of text, the first that there are.
    """

    texts: tuple[str, ...] = ()
    num_samples: int = 128

    def __post_init__(self) -> None:
        convert_fields(self)
        if self.num_samples < 1:
            raise InvalidFieldError(
                "num_samples", f"expected at least 1, found {self.num_samples}", help="128 is usual"
            )
