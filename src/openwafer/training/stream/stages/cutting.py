"""Cuts a row of calls into stages of about equal work."""

from collections.abc import Callable, Sequence
from itertools import pairwise


def cut_evenly(
    seconds: Sequence[float],
    may_begin: Sequence[bool],
    num_stages: int,
    fits: Callable[[int, range], bool],
) -> list[range] | None:
    """Stages whose longest is as short as can be; ``None`` where there are none that fit.

    Args:
        seconds: that each call takes.
        may_begin: whether a stage may begin with it; the first always does.
        num_stages: all of which have a call.
        fits: whether a stage of that number has room for such a range of calls.
    """
    num_calls = len(seconds)
    ends = [0.0]
    for one in seconds:
        ends.append(ends[-1] + one)
    # By calls behind them, the longest of the stages so far, and where they begin.
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for stage in range(num_stages):
        found: dict[int, tuple[float, tuple[int, ...]]] = {}
        for start, (longest, starts) in best.items():
            last = num_calls if stage == num_stages - 1 else num_calls - 1
            for stop in range(start + 1, last + 1):
                is_end = stop == num_calls
                if is_end != (stage == num_stages - 1) or not (is_end or may_begin[stop]):
                    continue
                tried = max(longest, ends[stop] - ends[start]), (*starts, start)
                if (stop not in found or tried < found[stop]) and fits(stage, range(start, stop)):
                    found[stop] = tried
        best = found
    if num_calls not in best:
        return None
    starts = best[num_calls][1]
    return [range(*both) for both in pairwise((*starts, num_calls))]
