"""Variants by name as people write them down, see docs/formats/openwafer-variants.md."""

from dataclasses import dataclass
from typing import Final, Literal

from openwafer.config import InvalidFieldError, PathLike, load, path_of, to_flow
from openwafer.training.sweep.ablation import Variant, telling_of
from openwafer.training.sweep.grid import require_free

FORMAT: Final = "openwafer-variants"
VERSION: Final = 1


@dataclass(frozen=True)
class WrittenVariant:
    """A variant's name, and values by key of the config, as in ``model.mlp_size: 512``."""

    name: str
    set: dict[str, object]

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise InvalidFieldError("name", "expected a name, found none")
        if not self.set:
            raise InvalidFieldError(
                "set",
                "expected keys with values, found none",
                help="such as {model.mlp_size: 512}; the baseline is there without being written",
            )


@dataclass(frozen=True)
class VariantsFile:
    """The content of a file; a field is a key of it."""

    format: Literal["openwafer-variants"]
    version: int
    variants: tuple[WrittenVariant, ...]

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise InvalidFieldError(
                "version",
                f"{self.version}; this program reads {FORMAT} {VERSION}",
                help=f"write it as docs/formats/{FORMAT}.md has it",
            )
        if not self.variants:
            raise InvalidFieldError("variants", "expected a variant or more, found none")


def read_variants(path: PathLike) -> tuple[Variant, ...]:
    """The variants of a file, in its order.

    Raises:
        OpenwaferError: every mistake of the file with its place; ``config-file`` where it cannot
            be read; ``sweep-grid`` for a key that each run has from the sweep.
    """
    path = path_of(path, "path")
    found = []
    for written in load(path, VariantsFile).variants:
        setting = {key: to_flow(value) for key, value in written.set.items()}
        found.append(Variant(written.name, setting, str(path)))
        with telling_of(found[-1]):
            for key in setting:
                require_free(key)
    return tuple(found)
