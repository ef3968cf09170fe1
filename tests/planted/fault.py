"""A planted fault: a slip in the product that the default tests are to find."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests import wings

PRODUCT: Final = Path("src/openwafer")


class MisfitError(Exception):
    """A fault does not fit the source that it is to be planted in."""


@dataclass(frozen=True)
class Fault:
    """One text of a source file in place of another.

    Attributes:
        name: kebab-case.
        kind: what goes wrong, in words.
        path: of the source file, below :data:`PRODUCT`.
        old: stands once in it.
        new: takes its place.
        likely: folders or files below tests where it is looked for first.
    """

    name: str
    kind: str
    path: str
    old: str
    new: str
    likely: tuple[str, ...]

    @property
    def wing(self) -> str:
        """The folder below :data:`PRODUCT` that the source is in, if it is in one."""
        return self.path.partition("/")[0]

    def reached(self, folders: Iterable[str]) -> list[str]:
        """Those folders below tests that the fault can reach, its own wing's first."""
        own, unseen = (known.get(self.wing, ()) for known in (wings.FOLDERS, wings.UNSEEN))
        return sorted({*folders} - {*unseen, "planted"}, key=lambda one: (one not in own, one))

    def planted(self, text: str) -> str:
        """The source with the fault.

        Raises:
            MisfitError: the old text does not stand in it exactly once.
        """
        if (count := text.count(self.old)) != 1:
            raise MisfitError(
                f"the fault '{self.name}' replaces {self.old!r}, which {PRODUCT / self.path} "
                f"has {count} times, not once: adapt it in tests/planted"
            )
        return text.replace(self.old, self.new)
