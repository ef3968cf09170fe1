"""A scaling law as a method: whether a run is on the track of a law fitted to other runs."""

from dataclasses import asdict, dataclass
from pathlib import Path

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import Diagnostic, Severity
from openwafer.loss_laws import FAR, Interval, SavedLaw, read_law
from openwafer.training.data.dataset import BatchSizes
from openwafer.training.methods.noise_scale import NoiseScaleKeys
from openwafer.training.methods.seam import Method, MethodRun, RunParts
from openwafer.training.methods.step_count import StepCount, count_step
from openwafer.training.metrics import ValidationPoint
from openwafer.training.metrics.run_record import TokenIdentity
from openwafer.training.session.config import RunConfig
from openwafer.training.session.run_conditions import run_conditions, token_identity


@dataclass(frozen=True)
class LawWatch(MethodRun):
    """A law, and what it is asked for a run.

    Attributes:
        path: of its record.
        law: as it was saved.
        count: of the run's steps.
        sizes: samples of each step.
        sequence_length: tokens of a sample.
        steps: of the run.
    """

    path: Path
    law: SavedLaw
    count: StepCount
    sizes: BatchSizes
    sequence_length: int
    steps: int

    def judged(self, point: ValidationPoint) -> ValidationPoint:
        """A held-out loss beside what the law expects there."""
        expected = self._expected(point.step + 1)
        if expected is None:
            return point
        is_on_track = expected.low <= point.loss <= expected.high
        return ValidationPoint(point.step, point.loss, expected.low, expected.high, is_on_track)

    def tell(self, point: ValidationPoint) -> str:
        """What the law says of a judged loss, for people."""
        end = self._expected(self.steps)
        if point.expected_low is None or point.expected_high is None:
            first = self.law.course[0].share
            return f"the law speaks from {first:.0%} of the run on"
        track = "on track"
        if not point.is_on_track:
            side = "above" if point.loss > point.expected_high else "below"
            track = f"off track, {side} the law"
        text = f"{track}: expected {point.expected_low:.4g} to {point.expected_high:.4g}"
        if end is not None and point.step + 1 < self.steps:
            text += f", at the end {end.low:.4g} to {end.high:.4g}"
        return text

    def remarks(self) -> tuple[Diagnostic, ...]:
        """A warning where the run ends far outside the computes that the law was fitted to."""
        flops = self._flops(self.steps)
        low, high = self.law.flops_range
        beyond = max(flops / high, low / flops)
        if beyond <= FAR:
            return ()
        message = (
            f"the run takes {flops:.3g} FLOPs, a factor of {beyond:.3g} outside the runs of "
            f"{self.path}, which reach from {low:.3g} to {high:.3g}"
        )
        remedy = "take what it expects for a guess, or fit a law to runs nearer to this one"
        return (Diagnostic(Severity.WARNING, "law-outside", message, help=remedy),)

    def loss_at_end(self) -> float:
        """What the law itself gives the run."""
        tokens, flops = self._tokens(self.steps), self._flops(self.steps)
        return self.law.loss(self.count.parameters, tokens, flops)

    def compute_factor(self, loss_ratio: float) -> float | None:
        """Times the run's tokens with which the law gives `loss_ratio` times its loss.

        See :meth:`openwafer.loss_laws.SavedLaw.compute_factor`.
        """
        tokens, flops = self._tokens(self.steps), self._flops(self.steps)
        return self.law.compute_factor(self.count.parameters, tokens, flops, loss_ratio)

    def _flops(self, steps: int) -> float:
        per_token = self.count.forward_flops + self.count.backward_flops
        return per_token * self._tokens(steps)

    def _tokens(self, steps: int) -> int:
        return self.sizes.before(steps) * self.sequence_length

    def _expected(self, steps: int) -> Interval | None:
        tokens = self._tokens(steps)
        share = tokens / self._tokens(self.steps)
        return self.law.expected(self.count.parameters, tokens, self._flops(steps), share)


def make_watch(
    path: Path, config: RunConfig, count: StepCount, identity: TokenIdentity, option: str
) -> LawWatch:
    """What judges a run's held-out losses by the law in a file, which `option` has named.

    Raises:
        OpenwaferError: ``law-file``; ``law-conditions`` where the law speaks of other losses.
    """
    law = read_law(path)
    conditions = run_conditions(config, count.sparsity)
    law.require_conditions(str(path), {**asdict(identity), **asdict(conditions)}, option)
    batch = config.batch
    return LawWatch(path, law, count, batch.sizes, batch.sequence_length, config.steps)


@dataclass(frozen=True)
class LawKeys(NoiseScaleKeys):
    """The key of a scaling law.

    Attributes:
        law: a file that ``openwafer fit --json`` wrote, by whose law held-out losses are judged;
            ``null`` judges none.
    """

    law: Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.law is not None and self.evaluate is None:
            raise InvalidFieldError(
                "law",
                "a law judges held-out losses, and this run takes none",
                help="set evaluate: {every: 100}, or leave law out",
            )

    def methods(self) -> tuple[Method, ...]:
        """See the class that it extends."""
        found = super().methods()
        return found if self.law is None else (*found, Law(self, self.law))


@dataclass(frozen=True)
class Law(Method):
    """Judges the held-out losses of a run."""

    config: NoiseScaleKeys
    path: Path

    key = "law"
    not_in_stages = ""

    def begin(self, run: RunParts) -> LawWatch:
        """The run's watch.

        Raises:
            OpenwaferError: ``law-file``; ``law-conditions`` where the law speaks of other losses.
        """
        count, identity = count_step(self.config), token_identity(run.dataset)
        return make_watch(self.path, self.config, count, identity, "--set law=")
