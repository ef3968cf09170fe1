"""Tables of an ablation: differences from the baseline, and a law beside them."""

import math

from rich.table import Table

from openwafer.cli.ablation_record import AblationRecord, LawReading, Result, Worth
from openwafer.cli.tables import plain_console
from openwafer.diagnostics import Diagnostic, Severity, counted, tell
from openwafer.training.sweep import Difference
from openwafer.training.sweep.sweep import standard_errors


def show_ablation(record: AblationRecord) -> None:
    """Print all results, how sure they are, and warnings of what could not be compared."""
    print()
    plain_console().print(_differences(record))
    print(f"\n{noise_of_differences(len(record.seeds))}")
    if record.law is not None:
        print()
        plain_console().print(_beside_law(record))
        print(
            "\nlaw's difference: what size and compute alone change, by the law; worth: times the "
            "baseline's\nFLOPs, spent on more tokens, with which the law gives the baseline that "
            "loss"
        )
    tell(_not_compared(record))


def noise_of_differences(num_seeds: int) -> str:
    """How it is found whether a difference is more than noise."""
    if num_seeds < 2:
        return "one seed: the noise of differences is not known; see --seeds"
    return (
        f"differences are means over {num_seeds} seeds, each run against the baseline's of its "
        f"seed; +- is {standard_errors(num_seeds):.3g} standard errors,\n95% by Student's t; "
        "beyond it a difference is told from zero"
    )


def _differences(record: AblationRecord) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("variant", overflow="fold")
    for title in ("loss", "difference", "+-", "told from 0"):
        table.add_column(title, justify="right")
    for title in ("FLOPs", "ratio", "parameters", "s a step"):
        table.add_column(title, justify="right")
    for result in record.results:
        cost = result.cost
        costs = ("", "", "", "")
        if cost is not None:
            ratio = "" if cost.flops_ratio is None else f"{cost.flops_ratio:.3f}"
            step = f"{cost.step_seconds:.3g}"
            costs = (f"{cost.flops:.3e}", ratio, f"{cost.parameters:.4g}", step)
        table.add_row(result.name, _loss(result), *_difference(result.difference), *costs)
    return table


def _loss(result: Result) -> str:
    num = sum(math.isinf(loss) for loss in result.losses)
    return f"{num} of {len(result.losses)} diverged" if num else f"{result.loss:.4f}"


def _difference(difference: Difference | None) -> tuple[str, str, str]:
    if difference is None:
        return "", "", ""
    if difference.margin is None:
        return f"{difference.mean:+.4f}", "", "not known"
    word = "yes" if difference.is_told_apart else "no"
    return f"{difference.mean:+.4f}", f"{difference.margin:.4f}", word


def _beside_law(record: AblationRecord) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"beside {record.law}", overflow="fold")
    titles = ("loss", "law", "loss - law", "difference", "law's difference", "worth")
    for title in titles:
        table.add_column(title, justify="right")
    for result in record.results:
        own, law = _difference(result.difference)[0], result.law
        told = ("", "", own, "", "") if law is None else _reading(law, own)
        table.add_row(result.name, _loss(result), *told)
    return table


def _reading(law: LawReading, difference: str) -> tuple[str, ...]:
    above = "" if law.above is None else f"{law.above:+.4f}"
    own = f"{law.difference:+.4f}" if difference else ""
    return f"{law.loss:.4f}", above, difference, own, _worth(law.worth)


def _worth(worth: Worth | None) -> str:
    if worth is None:
        return ""
    if worth.factor is None:
        return "outside the law"
    ends = [f"{end:.3g}" if end else "?" for end in (worth.low, worth.high)]
    interval = f" ({ends[0]} to {ends[1]})" if ends != ["?", "?"] else ""
    return f"{worth.factor:.3g}{interval}"


def _not_compared(record: AblationRecord) -> list[Diagnostic]:
    """A warning where runs diverged, so that there is no difference to tell."""
    diverged = [result for result in record.results if math.isinf(result.loss)]
    found = []
    for result in diverged:
        is_base = result is record.results[0]
        num = counted(sum(math.isinf(loss) for loss in result.losses), "run")
        what = "nothing can be compared with it" if is_base else "its difference is not known"
        message = f"of {result.name!r} {num} of {len(result.losses)} diverged: {what}"
        help = "try a lower learning rate"
        found.append(Diagnostic(Severity.WARNING, "ablation-diverged", message, help=help))
    return found
