"""Budgets of training in FLOPs, from time or money on a system."""

import math
from dataclasses import dataclass

from openwafer.diagnostics import OpenwaferError, error
from openwafer.figures import Figure, Origin
from openwafer.planning.systems import System, find_system
from openwafer.planning.throughput import affordable_flops

SECONDS_PER_HOUR = 60 * 60


@dataclass(frozen=True)
class SystemBudget:
    """Hours, or money at a price for the hour of one system, on systems of a name."""

    hours: float | None
    money: float | None
    price: float | None
    system: str | None
    num_systems: int


@dataclass(frozen=True)
class Budget:
    """FLOPs to spend, and the figures that they follow from."""

    flops: float
    figures: tuple[Figure, ...] = ()


def budgets_on_systems(asked: SystemBudget) -> tuple[Budget, ...]:
    """The budgets that hours and money pay.

    Raises:
        OpenwaferError: ``option-value`` for half a budget, ``system-unknown``.
    """
    for name in ("hours", "money", "price"):
        value = getattr(asked, name)
        if value is not None and not 0 < value < math.inf:
            raise _mistake(f"--{name} is {value:g}", "give a number above 0")
    if asked.hours is None and asked.money is None:
        for name in ("price", "system"):
            if getattr(asked, name) is not None:
                raise _mistake(
                    f"--{name} stands without --hours or --money", "say what is to be spent there"
                )
        return ()
    if asked.system is None:
        spent = "hours" if asked.money is None else "money"
        raise _mistake(f"--{spent} is spent on no system", "name one, as in --system h200")
    if (asked.money is None) != (asked.price is None):
        given, missing = ("money", "price") if asked.price is None else ("price", "money")
        raise _mistake(
            f"--{given} stands without --{missing}",
            "give both: --money in all, and --price for an hour of one system",
        )
    system = find_system(asked.system)
    budgets = []
    if asked.hours is not None:
        hours = Figure("hours", asked.hours, "h", Origin.GIVEN, "as asked for")
        budgets.append(_budget(hours, (), system, asked.num_systems))
    if asked.money is not None and asked.price is not None:
        money = Figure("money", asked.money, "", Origin.GIVEN, "as asked for")
        price = Figure("price", asked.price, "", Origin.GIVEN, "for an hour of one system")
        paid = asked.money / asked.price / asked.num_systems
        hours = Figure("hours", paid, "h", Origin.INFERRED, "money / price / systems")
        budgets.append(_budget(hours, (money, price), system, asked.num_systems))
    return tuple(budgets)


def _budget(hours: Figure, paid: tuple[Figure, ...], system: System, number: int) -> Budget:
    seconds = hours.value * SECONDS_PER_HOUR
    flops = affordable_flops(seconds, system, number, system.utilisation.value)
    how = f"hours x {number} {system.title} x peak x utilisation"
    work = Figure("work", flops, "FLOP", Origin.INFERRED, how)
    return Budget(flops, (*paid, hours, system.peak, system.utilisation, work))


def _mistake(message: str, remedy: str) -> OpenwaferError:
    return error("option-value", message, help=remedy)
