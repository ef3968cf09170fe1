"""A sweep: its file, its runs one after the other, and what they tell.

docs/formats/openwafer-sweep.md describes the file: what the sweep began with and which runs ended.
"""

import math
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Final

import xxhash
from rich.console import Console
from scipy.special import stdtrit

from openwafer.atomic_file import write_bytes
from openwafer.config import PathLike, parse, path_of, settings_of, to_yaml
from openwafer.diagnostics import OpenwaferError, error
from openwafer.folder_lock import FolderInUseError, FolderLock
from openwafer.json_files import SealedFormat
from openwafer.source import SourceText
from openwafer.training.metrics import METRICS_FORMAT, VALIDATION_FORMAT, read_lines
from openwafer.training.session import RunConfig, Session, TrainResult, load_config
from openwafer.training.session.config_sections import EvaluateConfig
from openwafer.training.session.run_folder import RunFolder
from openwafer.training.sweep.ablation import BASELINE, Choice


@dataclass(frozen=True)
class SweptRun:
    """A run of a sweep that has ended.

    Attributes:
        name: of its folder.
        settings: values by key of the config, as texts.
        seed: of weights, dropout and order of data.
        validation_loss: on held-out documents after the last step; None where the run diverged.
        steps: that were done.
        seconds: that it took.
    """

    name: str
    settings: dict[str, str]
    seed: int
    validation_loss: float | None
    steps: int
    seconds: float

    @property
    def loss(self) -> float:
        """The loss, infinite where the run diverged."""
        return math.inf if self.validation_loss is None else self.validation_loss

    def is_of(self, settings: Mapping[str, str], seed: int) -> bool:
        """Whether it is the run with these settings and this seed."""
        return (self.settings, self.seed) == (settings, seed)


@dataclass(frozen=True)
class SweepRecord:
    """The content of the file.

    Attributes:
        config: of all runs but for `keys`, as YAML with every default.
        keys: that differ between runs.
        runs: that have ended, in that order.
    """

    config: str
    keys: tuple[str, ...]
    runs: tuple[SweptRun, ...]


FORMAT: Final = SealedFormat(
    "openwafer-sweep",
    1,
    SweepRecord,
    "sweep-corrupt",
    "restore the file, or begin again in another folder",
    "sweep-version",
    "go on with the program that wrote it, or begin again in another folder",
)


def read_sweep(path: Path) -> SweepRecord | None:
    """The sweep in a file; None where there is no such file.

    Raises:
        OpenwaferError: ``sweep-corrupt``, ``sweep-version``, ``sweep-folder``.
    """
    try:
        return FORMAT.decode(path, path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as cause:
        raise error(
            "sweep-folder",
            f"cannot read {path}: {cause.strerror}",
            help="give a folder that may be read and written",
        ) from cause


def write_sweep(path: Path, record: SweepRecord) -> None:
    """Replace the file. Raises OSError."""
    write_bytes(path, FORMAT.encode(record))


DIVERGED: Final = "loss-not-finite"
NAME_CHARS: Final = 100
SWEEPS_OWN: Final = ("name", "folder", "seed", "log_every")
"""Keys that say nothing of what is learned, or that a sweep gives to each run."""


@dataclass(frozen=True)
class Progress:
    """Before a run begins: its place among those that are left, and what is known of the time.

    Attributes:
        number: of the run, from 1 on, among all of the sweep.
        total: runs of the sweep.
        name: of the run.
        seconds_left: for this run and those behind it, as long as the mean of those that this
            process has seen; None before one has ended.
    """

    number: int
    total: int
    name: str
    seconds_left: float | None


@dataclass(frozen=True)
class _Planned:
    number: int
    settings: Mapping[str, str]
    config: RunConfig


class Sweep:
    """Runs that differ in their settings: all of a grid, or an ablation's.

    Args:
        config: file of what the runs have in common.
        overrides: of it.
        choice: what they differ in.
        folder: of the sweep: its file, a folder for each run, and the tokens that runs share.

    Raises:
        OpenwaferError: every mistake of any of the configs; ``sweep-changed`` where the folder has
            a sweep of another config or over other keys; ``sweep-corrupt``, ``sweep-version``.
    """

    def __init__(
        self, config: PathLike, overrides: Sequence[str], choice: Choice, folder: PathLike
    ) -> None:
        config = path_of(config, "config")
        folder = path_of(folder, "folder")
        self.choice = choice
        self.folder = folder
        common = replace(load_config(config, tuple(overrides)), name=None)
        pairs = [(settings, seed) for settings in choice.settings for seed in choice.seeds]
        self._planned = [
            _Planned(number, settings, self._proxy(config, tuple(overrides), settings, seed))
            for number, (settings, seed) in enumerate(pairs)
        ]
        self._path = folder / "sweep.json"
        self._asked = SweepRecord(to_yaml(common), choice.keys, ())
        self._record = self._read()

    @property
    def runs(self) -> tuple[SweptRun, ...]:
        """All that have ended, of what was asked for earlier in this folder too."""
        return self._record.runs

    @property
    def num_left(self) -> int:
        """Runs asked for that have not ended."""
        return len(self._left())

    def config_of(self, settings: Mapping[str, str]) -> RunConfig:
        """Of the first run with these settings."""
        return next(each.config for each in self._planned if each.settings == settings)

    def run(self, begins: Callable[[Progress], None], ended: Callable[[SweptRun], None]) -> str:
        """Train what has not ended; the signal that ended it early, or nothing.

        A run that a kill has cut off begins again.

        Raises:
            OpenwaferError: ``sweep-locked``; what training raises, but for a loss that is not
                finite, which ends that run alone.
        """
        seconds: list[float] = []
        with self._locked():
            for planned in self._left():
                begins(self._progress(planned, seconds))
                start = time.monotonic()
                result = _train(planned.config)
                if result is not None and result.interrupted_by:
                    return result.interrupted_by
                seconds.append(time.monotonic() - start)
                self._note(_ended(planned, seconds[-1], has_diverged=result is None))
                ended(self._record.runs[-1])
        return ""

    def _read(self) -> SweepRecord:
        found = read_sweep(self._path) or self._asked
        _require_same(self._path, found, self._asked)
        return found

    def _left(self) -> list[_Planned]:
        return [
            each
            for each in self._planned
            if not any(run.is_of(each.settings, each.config.seed) for run in self._record.runs)
        ]

    def _progress(self, planned: _Planned, seconds: Sequence[float]) -> Progress:
        seconds_left = len(self._left()) * fmean(seconds) if seconds else None
        name = str(planned.config.name)
        return Progress(planned.number + 1, len(self._planned), name, seconds_left)

    def _proxy(
        self, path: Path, overrides: tuple[str, ...], settings: Mapping[str, str], seed: int
    ) -> RunConfig:
        """It is evaluated after its last step, saves nothing then, and shares its tokens."""
        assigned = tuple(f"{key}={value}" for key, value in settings.items())
        config = load_config(path, (*overrides, *assigned))
        data = config.data
        if data.folder is None and not any(key.split(".")[0] == "data" for key in settings):
            data = replace(data, folder=(self.folder / "tokens").absolute())
        return replace(
            config,
            data=data,
            seed=seed,
            name=_name((*(assigned or (BASELINE,)), f"seed={seed}")),
            folder=self.folder / "runs",
            # Steps of epochs are not counted yet.
            evaluate=config.evaluate or EvaluateConfig(every=config.steps or sys.maxsize),
            checkpoint=replace(config.checkpoint, at_end=False),
        )

    def _note(self, run: SweptRun) -> None:
        self._record = replace(self._record, runs=(*self._record.runs, run))
        write_sweep(self._path, self._record)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = FolderLock(self.folder)
        except FolderInUseError as cause:
            raise error(
                "sweep-locked",
                f"the sweep {self.folder} is {cause}",
                help="wait until that process ends, or end it",
            ) from cause
        except OSError as cause:
            raise error(
                "sweep-folder",
                f"cannot use the folder {self.folder}: {cause.strerror}",
                help="give the path of a folder that may be written to",
            ) from cause
        try:
            # Another process may have gone on with it meanwhile.
            self._record = self._read()
            write_sweep(self._path, self._record)
            yield
        finally:
            lock.release()


def _name(assigned: Sequence[str]) -> str:
    whole = ",".join(assigned)
    name = re.sub(r"[^A-Za-z0-9.=,+_-]+", "_", whole)
    if name == whole and len(name) <= NAME_CHARS:
        return name
    return f"{name[:NAME_CHARS]}-{xxhash.xxh3_64_hexdigest(whole.encode())[:8]}"


def _train(config: RunConfig) -> TrainResult | None:
    """Train a run from its first step; ``None`` where it diverged."""
    folder = RunFolder(config.path)
    if folder.path.exists():
        shutil.rmtree(folder.path)
    try:
        return Session(config, console=Console(quiet=True)).train()
    except OpenwaferError as found:
        if found.diagnostics[0].code != DIVERGED:
            raise
        return None


def _ended(planned: _Planned, seconds: float, *, has_diverged: bool) -> SweptRun:
    config = planned.config
    folder = RunFolder(config.path)
    steps = len(read_lines(folder.metrics, METRICS_FORMAT).rows)
    kept = None
    if not has_diverged:
        # The last step, also one that early_stopping made the last, is evaluated.
        loss = read_lines(folder.validation, VALIDATION_FORMAT).rows[-1].loss
        kept = loss if math.isfinite(loss) else None
    return SweptRun(str(config.name), dict(planned.settings), config.seed, kept, steps, seconds)


def _require_same(path: Path, found: SweepRecord, asked: SweepRecord) -> None:
    if found.keys != asked.keys:
        raise error(
            "sweep-changed",
            f"the sweep in {path} is over {_over(found)}, and {_over(asked)} is asked for",
            help="give another --folder, or sweep over the same keys",
        )
    one, other = (_values(record) for record in (found, asked))
    for key in sorted({*one, *other}):
        is_swept = any(
            key == own or key.startswith(f"{own}.") for own in (*found.keys, *SWEEPS_OWN)
        )
        if one.get(key) != other.get(key) and not is_swept:
            raise error(
                "sweep-changed",
                f"{key} is {one.get(key)} in the sweep in {path}, and {other.get(key)} here",
                help="give another --folder, or put the value back",
            )


def _over(record: SweepRecord) -> str:
    return ", ".join(record.keys) or "one change at a time (openwafer ablate)"


def _values(record: SweepRecord) -> dict[str, str]:
    config = parse(SourceText("the sweep's config", record.config), RunConfig)
    return settings_of(config)


Setting = Mapping[str, str]
"""Values by key of the config, as texts."""

NUM_ERRORS = 2
"""Standard errors of a difference that two settings have to lie apart to be told apart."""


@dataclass(frozen=True)
class Outcome:
    """Runs that differ in their seed alone.

    Attributes:
        setting: of them all.
        losses: on held-out documents, one a seed; infinite where a run diverged.
    """

    setting: Setting
    losses: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Of the losses; infinite where one diverged."""
        return math.inf if self.num_diverged else fmean(self.losses)

    @property
    def num_diverged(self) -> int:
        """Runs whose loss was not finite."""
        return sum(math.isinf(loss) for loss in self.losses)

    @property
    def deviation(self) -> float | None:
        """Standard deviation over seeds; None of one seed or where a run diverged."""
        if len(self.losses) < 2 or self.num_diverged:
            return None
        return stdev(self.losses)


def outcomes_of(choice: Choice, runs: Sequence[SweptRun]) -> tuple[Outcome, ...]:
    """The outcomes of runs that have all ended, in the order of the settings asked for."""
    return tuple(
        Outcome(
            setting,
            tuple(
                next(run.loss for run in runs if run.is_of(setting, seed)) for seed in choice.seeds
            ),
        )
        for setting in choice.settings
    )


def noise_of(outcomes: Sequence[Outcome]) -> float | None:
    """Standard deviation over seeds, pooled over settings; None where there is one seed alone."""
    found = [each.deviation for each in outcomes if each.deviation is not None]
    return math.sqrt(fmean(deviation**2 for deviation in found)) if found else None


def best_of(outcomes: Sequence[Outcome]) -> tuple[Outcome, tuple[Outcome, ...]]:
    """The setting of the least mean loss, and others that the noise does not tell from it.

    Two means of n seeds are told apart where they differ by more than `NUM_ERRORS` times
    ``noise * sqrt(2 / n)``. With one seed the noise is not known, and no others are told.

    Raises:
        OpenwaferError: ``sweep-diverged`` where no setting has runs that all stayed finite.
    """
    best = min(outcomes, key=lambda each: each.mean)
    if math.isinf(best.mean):
        raise error(
            "sweep-diverged",
            f"of {len(outcomes)} settings each has a run whose loss was not finite",
            help="try lower learning rates",
        )
    noise = noise_of(outcomes)
    if noise is None:
        return best, ()
    apart = NUM_ERRORS * noise * math.sqrt(2 / len(best.losses))
    near = (each for each in outcomes if each is not best and each.mean - best.mean <= apart)
    return best, tuple(near)


CONFIDENCE: Final = 0.95


@dataclass(frozen=True)
class Difference:
    """The mean over seeds of a variant's loss minus the baseline's with the same seed.

    Losses are in nats a token. With one seed the noise is not known.

    Attributes:
        mean: of the differences.
        standard_error: of that mean; None of one seed.
        margin: half the 95% interval of the mean, by Student's t; None of one seed.
    """

    mean: float
    standard_error: float | None
    margin: float | None

    @property
    def is_told_apart(self) -> bool | None:
        """Whether 0 lies outside the interval; None of one seed."""
        return None if self.margin is None else abs(self.mean) > self.margin


def standard_errors(num_seeds: int) -> float:
    """Standard errors from the mean of so many differences to either end of its 95% interval.

    It is the quantile of Student's t with ``num_seeds - 1`` degrees of freedom.
    """
    return float(stdtrit(num_seeds - 1, (1 + CONFIDENCE) / 2))


def difference_of(baseline: Outcome, variant: Outcome) -> Difference | None:
    """The difference of two outcomes of the same seeds; None where a run of either diverged."""
    if baseline.num_diverged or variant.num_diverged:
        return None
    pairs = zip(variant.losses, baseline.losses, strict=True)
    own = [one - other for one, other in pairs]
    if len(own) < 2:
        return Difference(own[0], None, None)
    error = stdev(own) / math.sqrt(len(own))
    return Difference(fmean(own), error, standard_errors(len(own)) * error)
