"""Which runs a sweep makes: all combinations of some values, or variants of one config.

Variants are compared with the run as it is; docs/formats/openwafer-variants.md describes the file
in which people write them down.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Final, Literal

from openwafer.config import InvalidFieldError, PathLike, load, path_of, to_flow
from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.session import RunConfig, load_config
from openwafer.training.session.building import tokenizer_of
from openwafer.training.session.config_sections import EvaluateConfig
from openwafer.training.session.run_conditions import run_conditions

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


BASELINE: Final = "baseline"


@dataclass(frozen=True)
class Variant:
    """What one variant changes.

    Attributes:
        name: in tables and pictures.
        setting: values by key of the config, as texts; empty for the baseline.
        origin: where it was written, in words.
    """

    name: str
    setting: Mapping[str, str]
    origin: str = ""


@dataclass(frozen=True)
class Ablation:
    """A config as it is, then each of its `variants`, all with every one of `seeds`."""

    variants: tuple[Variant, ...]
    seeds: tuple[int, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """None: what a variant does not change is the baseline's, so all of that must stay."""
        return ()

    @property
    def rows(self) -> tuple[Variant, ...]:
        """The baseline, and the variants in their order."""
        return (Variant(BASELINE, {}), *self.variants)

    @property
    def settings(self) -> Iterator[Mapping[str, str]]:
        """Values by key, of the baseline first."""
        for variant in self.rows:
            yield variant.setting


Choice = Grid | Ablation
"""Which runs are made: all combinations of some values, or one change at a time."""


def variants_of(axis: Axis) -> tuple[Variant, ...]:
    """A variant for each value of an axis."""
    return tuple(
        Variant(f"{axis.key}={value}", {axis.key: value}, f"--vary {axis.key}")
        for value in axis.values
    )


def require_variants(config: PathLike, overrides: Sequence[str], ablation: Ablation) -> None:
    """Refuse variants whose comparison with the baseline would say nothing.

    Raises:
        OpenwaferError: the mistakes of any variant's values; ``ablation-name`` for a name that
            stands twice; ``ablation-same`` for a variant that is the baseline, or another variant;
            ``ablation-held-out`` where its loss is taken on other held-out texts.
    """
    config = path_of(config, "config")
    if not ablation.variants:
        raise error(
            "option-value",
            "there is nothing to compare with the baseline",
            help="give --vary KEY=V,V,... or --grid-file FILE",
        )
    base = load_config(config, tuple(overrides))
    seen = {BASELINE: (Variant(BASELINE, {}, str(config)), base)}
    for variant in ablation.variants:
        if variant.name in seen:
            raise error(
                "ablation-name",
                f"the name {variant.name!r} stands twice: in {seen[variant.name][0].origin}, and "
                f"in {variant.origin}",
                help="give each variant a name of its own",
            )
        own = _loaded(config, overrides, variant)
        for other, earlier in seen.values():
            _require_different(variant, own, other, earlier)
        _require_same_texts(variant, own, base)
        seen[variant.name] = variant, own


def _loaded(config: Path, overrides: Sequence[str], variant: Variant) -> RunConfig:
    assigned = (f"{key}={value}" for key, value in variant.setting.items())
    with telling_of(variant):
        return load_config(config, (*overrides, *assigned))


@contextmanager
def telling_of(variant: Variant) -> Iterator[None]:
    """Context whose errors have a note that names the variant and where it was written."""
    try:
        yield
    except OpenwaferError as found:
        where = f" of {variant.origin}" if variant.origin else ""
        note = f"in the variant {variant.name!r}{where}"
        told = (replace(each, notes=(*each.notes, note)) for each in found.diagnostics)
        raise OpenwaferError(*told) from found


def _require_different(
    variant: Variant, own: RunConfig, other: Variant, earlier: RunConfig
) -> None:
    if own != earlier:
        return
    told = ", ".join(f"{key}={value}" for key, value in variant.setting.items())
    raise error(
        "ablation-same",
        f"the variant {variant.name!r} of {variant.origin} sets {told}, and so does {other.name!r} "
        f"of {other.origin}: their runs are the same",
        help="give it another value, or leave it out",
    )


def _require_same_texts(variant: Variant, own: RunConfig, base: RunConfig) -> None:
    found = _held_out(own)
    for words, expected in _held_out(base).items():
        if found[words] != expected:
            raise error(
                "ablation-held-out",
                f"{words}: {to_flow(found[words])} in the variant {variant.name!r} of "
                f"{variant.origin}, and {to_flow(expected)} in the baseline; losses of other texts "
                "or tokens cannot be compared",
                help="leave it out; where held-out tokens differ, set evaluate.batches in the same "
                "variant of a --grid-file: they are evaluate.batches x batch.size x "
                "batch.sequence_length",
            )


def _held_out(config: RunConfig) -> dict[str, object]:
    """Of a run as it is made here, what its loss is the mean over."""
    data = config.data
    evaluated = replace(config, evaluate=config.evaluate or EvaluateConfig())
    return {
        "data.source": data.source,
        "data.tokenizer": tokenizer_of(config),
        "data.validation_share": data.validation_share,
        "data.split_seed": data.split_seed,
        "data.cross_documents": data.cross_documents,
        "held-out tokens": run_conditions(evaluated, 0.0).held_out_tokens,
    }


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
