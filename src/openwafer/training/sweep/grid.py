"""Which values of a config a sweep tries."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

from openwafer.diagnostics import error

OPENING, CLOSING = "[{", "]}"


@dataclass(frozen=True)
class Axis:
    """A key of the config, as in ``optimizer.learning_rate``, and the values that are tried.

    Values are texts as a config file has them, in the order in which they were given.
    """

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Grid:
    """All combinations of the values of `axes`, each with every one of `seeds`."""

    axes: tuple[Axis, ...]
    seeds: tuple[int, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """Of the config, that differ between runs."""
        return tuple(axis.key for axis in self.axes)

    @property
    def settings(self) -> Iterator[Mapping[str, str]]:
        """Values by key; the last key changes first."""
        for values in product(*(axis.values for axis in self.axes)):
            yield dict(zip(self.keys, values, strict=True))


def parse_axis(text: str) -> Axis:
    """An axis that is written as in ``optimizer.learning_rate=1e-3,3e-3``.

    Raises:
        OpenwaferError: ``sweep-grid``.
    """
    key, found, values = text.partition("=")
    parts = tuple(part.strip() for part in _split(values))
    if not (found and key.strip() and all(parts)):
        raise error(
            "sweep-grid",
            f"{text!r} is no key with values",
            help="such as optimizer.learning_rate=1e-3,3e-3,1e-2",
        )
    if len(set(parts)) < len(parts):
        twice = next(part for part in parts if parts.count(part) > 1)
        raise error("sweep-grid", f"{text!r} has {twice} twice", help="give each value once")
    require_free(key.strip())
    return Axis(key.strip(), parts)


def require_free(key: str) -> None:
    """Raise ``sweep-grid`` for a key that runs of a sweep have from the sweep."""
    if key in ("seed", "name", "folder"):
        raise error(
            "sweep-grid",
            f"{key} is what the sweep itself gives to each run",
            help="take --seeds N for more seeds, --folder for where the runs are",
        )


def _split(values: str) -> Iterator[str]:
    """Parts between commas that stand in no brackets."""
    depth, part = 0, ""
    for char in values:
        depth += (char in OPENING) - (char in CLOSING)
        if char == "," and depth == 0:
            yield part
            part = ""
        else:
            part += char
    yield part
