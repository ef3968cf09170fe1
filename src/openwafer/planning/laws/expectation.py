"""A fitted law says which loss a compute reaches, and how to spend it."""

import math
from collections.abc import Sequence

from openwafer.diagnostics import Diagnostic, Severity, error
from openwafer.figures import Figure, Origin
from openwafer.planning.laws.fitted import Fitted, Law
from openwafer.planning.laws.points import TrainedPoint
from openwafer.planning.laws.published import CriticalBatch
from openwafer.planning.laws.run_settings import critical_batch, learning_rate

WARN_DECADES = 1.0
MAX_DECADES = 4.0


def decades_outside(fitted: Fitted[Law], flops: float) -> float:
    """Powers of ten between `flops` and the nearest point; 0 among the points."""
    least, most = fitted.flops_range
    return max(math.log10(flops / most), math.log10(least / flops), 0.0)


def require_near(fitted: Fitted[Law], flops: float) -> tuple[Diagnostic, ...]:
    """Refuse a compute far outside the points (``law-far-outside``); warn of one outside them.

    Raises ``flops-value`` for what is no compute at all.
    """
    if not 0 < flops < math.inf:
        raise error(
            "flops-value",
            f"{flops:g} FLOPs are asked for, not a finite number above 0",
            help="give a number of floating-point operations, such as 1e18",
        )
    decades = decades_outside(fitted, flops)
    if decades <= WARN_DECADES:
        return ()
    least, most = fitted.flops_range
    message = (
        f"{flops:.3g} FLOPs lie {decades:.1f} decades outside the points, a factor of "
        f"{10**decades:.3g}; they reach from {least:.3g} to {most:.3g}"
    )
    remedy = f"train a model nearer to it, within {WARN_DECADES:g} decade"
    if decades > MAX_DECADES:
        raise error("law-far-outside", message, help=remedy)
    note = "the interval holds only if the law goes on as it does among the points"
    return (Diagnostic(Severity.WARNING, "law-outside", message, notes=(note,), help=remedy),)


def expected_loss(fitted: Fitted[Law], flops: float) -> Figure:
    """The loss that the law gives for `flops`, with the interval of the law itself.

    One run scatters about it by `Fitted.scatter` more.
    """
    source = f"the fitted law, {decades_outside(fitted, flops):.1f} decades outside its points"
    return fitted.figure("loss", "nats/token", source, lambda law: law.loss_at(flops))


def propose(
    fitted: Fitted[Law],
    flops: float,
    batch_tokens: float | None = None,
    tried: Sequence[TrainedPoint] = (),
) -> tuple[Figure, ...]:
    """Parameters, tokens, batch, steps, learning rate and loss for a budget of `flops`.

    Without `batch_tokens` the batch is the critical one at the loss that is reached. `tried` are
    runs that tell of learning rates beside those of the fit.

    Raises:
        OpenwaferError: ``budget-below-step`` when the budget does not pay a single step.
    """
    loss = expected_loss(fitted, flops)
    how = fitted.law.allocation_source
    parameters = fitted.figure("parameters", "", how, lambda law: law.allocation(flops).parameters)
    tokens = fitted.figure("tokens", "", how, lambda law: law.allocation(flops).tokens)
    runs = fitted.runs or fitted.points
    batch = _batch(loss.value, batch_tokens, critical_batch(runs))
    step_flops = flops / tokens.value * batch.value
    if flops < step_flops:
        raise error(
            "budget-below-step",
            f"a budget of {flops:.3g} FLOPs does not pay one step: {parameters.value:.3g} "
            f"parameters and a batch of {batch.value:.3g} tokens take {step_flops:.3g}",
            help="raise the budget, or give a smaller batch",
        )
    steps = Figure("steps", tokens.value / batch.value, "", Origin.INFERRED, "tokens / batch")
    rate = learning_rate(tried or runs, parameters.value)
    return parameters, tokens, batch, steps, *([] if rate is None else [rate]), loss


def sizes_outside(fitted: Fitted[Law], flops: float) -> tuple[Diagnostic, ...]:
    """Warnings of parameters or tokens for a budget that lie far outside those of the points."""
    spent = fitted.law.allocation(flops)
    runs = fitted.runs or fitted.points
    found = []
    for name, value in (("parameters", spent.parameters), ("tokens", spent.tokens)):
        known = [float(getattr(run, name)) for run in runs if getattr(run, name) is not None]
        beyond = max(value / max(known), min(known) / value) if known else 1.0
        if math.log10(beyond) > WARN_DECADES:
            message = (
                f"{value:.3g} {name} for {flops:.3g} FLOPs lie a factor of {beyond:.3g} outside "
                f"the points, which reach from {min(known):.3g} to {max(known):.3g}"
            )
            remedy = f"train models with {name} nearer to it"
            found.append(Diagnostic(Severity.WARNING, "law-outside", message, help=remedy))
    return tuple(found)


def _batch(loss: float, given_tokens: float | None, critical: CriticalBatch) -> Figure:
    if given_tokens is None:
        tokens = critical.tokens_at(loss)
        return Figure("batch", tokens, "tokens", Origin.INFERRED, critical.source)
    if not 0 < given_tokens < math.inf:
        raise error(
            "batch-value",
            f"a batch of {given_tokens:g} tokens is asked for",
            help="give a finite number of tokens above 0",
        )
    return Figure("batch", given_tokens, "tokens", Origin.GIVEN, "as asked for")
