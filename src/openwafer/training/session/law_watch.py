"""Whether a run is on the track of a scaling law that was fitted to other runs."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from openwafer.diagnostics import Diagnostic, Severity, error
from openwafer.loss_laws import Interval, SavedLaw, read_law
from openwafer.training.data import BatchSizes, TokenDataset
from openwafer.training.metrics import TokenIdentity, ValidationPoint
from openwafer.training.session.config import RunConfig
from openwafer.training.session.run_conditions import run_conditions
from openwafer.training.session.step_count import StepCount, count_step

FAR: Final = 10.0


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
    law, count = read_law(config.law), count_step(config)
    identity, conditions = token_identity(dataset), run_conditions(config, count.sparsity)
    own = {**asdict(identity), **asdict(conditions)}
    for key, expected in law.conditions.items():
        if str(own[key]) != expected:
            words = key.replace("_", " ")
            raise error(
                "law-conditions",
                f"the law of {config.law} was fitted to runs of the {words} {expected}, and this "
                f"run has the {words} {own[key]}: their losses cannot be compared",
                help=f"train with that {words}, or judge by a law of such runs: --set law=FILE",
            )
    batch = config.batch
    return LawWatch(config.law, law, count, batch.sizes, batch.sequence_length, config.steps)
