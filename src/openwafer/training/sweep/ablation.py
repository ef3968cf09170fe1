"""Variants of a run that each change a little, and are compared with the run as it is."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from openwafer.config import PathLike, path_of, to_flow
from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.session import RunConfig, load_config
from openwafer.training.session.building import tokenizer_of
from openwafer.training.session.config import EvaluateConfig
from openwafer.training.session.run_conditions import run_conditions
from openwafer.training.sweep.grid import Axis, Grid

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
