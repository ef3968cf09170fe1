"""Whether a run is on the track of a scaling law that was fitted to other runs."""

from dataclasses import asdict, dataclass
from pathlib import Path

from openwafer.diagnostics import Diagnostic, Severity
from openwafer.loss_laws import FAR, Interval, SavedLaw, read_law
from openwafer.training.data import BatchSizes, TokenDataset
from openwafer.training.metrics import TokenIdentity, ValidationPoint
from openwafer.training.session.config import RunConfig
from openwafer.training.session.run_conditions import run_conditions
from openwafer.training.session.step_count import StepCount, count_step


def token_identity(dataset: TokenDataset) -> TokenIdentity:
    """Which tokens a run trains on."""
    return TokenIdentity(dataset.tokenizer.fingerprint, dataset.content_fingerprint)


@dataclass(frozen=True)
class LawWatch:
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

    def judged(self, step: int, loss: float) -> ValidationPoint:
        """A held-out loss after the step `step`, beside what the law expects there."""
        expected = self._expected(step + 1)
        if expected is None:
            return ValidationPoint(step, loss)
        is_on_track = expected.low <= loss <= expected.high
        return ValidationPoint(step, loss, expected.low, expected.high, is_on_track)

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

    def warnings(self) -> tuple[Diagnostic, ...]:
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


def watch_by_law(config: RunConfig, dataset: TokenDataset) -> LawWatch | None:
    """What judges the held-out losses of a run; None where its config names no law.

    Raises:
        OpenwaferError: ``law-file``; ``law-conditions`` where the law speaks of other losses.
    """
    if config.law is None:
        return None
    count = count_step(config)
    return make_watch(config.law, config, count, token_identity(dataset), "--set law=")


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
