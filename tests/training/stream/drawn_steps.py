"""Steps for schedules to be built from, drawn by Hypothesis."""

from dataclasses import dataclass

from hypothesis import strategies as st

from openwafer.training.stream.schedule import (
    RecordBytes,
    Schedule,
    UpdateTiming,
    Visit,
    build,
)


@dataclass(frozen=True)
class DrawnStep:
    """What :func:`build` is asked for."""

    visits: tuple[Visit, ...]
    sizes: dict[str, RecordBytes]
    timing: UpdateTiming
    spare_bytes: int
    prefetch_layers: int | None

    @property
    def smallest_capacity(self) -> int:
        """What the visit that needs most weights needs."""
        return max(
            sum(self.sizes[record].weights for record in visit.records) for visit in self.visits
        )

    @property
    def trained(self) -> set[str]:
        """Records that get a gradient."""
        return {
            record
            for visit in self.visits
            if visit.has_backward
            for record in visit.records
            if self.sizes[record].is_trained
        }

    def build(self, *, more_bytes: int = 0) -> Schedule:
        return build(
            self.visits,
            self.sizes,
            timing=self.timing,
            capacity_bytes=self.smallest_capacity + self.spare_bytes + more_bytes,
            prefetch_layers=self.prefetch_layers,
        )


@st.composite
def drawn_steps(draw: st.DrawFn, *, has_one_size: bool = False) -> DrawnStep:
    """Up to 8 layers of 1 to 2 records, some tied, some frozen, called in any order and number."""
    records = [f"r{index}" for index in range(draw(st.integers(1, 6)))]
    needs = st.lists(st.sampled_from(records), min_size=1, max_size=2, unique=True).map(tuple)
    layers = draw(st.lists(needs, min_size=1, max_size=8))
    calls = st.tuples(st.integers(0, len(layers) - 1), st.booleans())
    visits = tuple(
        Visit(f"l{layer}", layers[layer], has_backward)
        for layer, has_backward in draw(st.lists(calls, min_size=1, max_size=12))
    )
    reached = {name for visit in visits if visit.has_backward for name in visit.records}
    weights = st.just(4) if has_one_size else st.integers(1, 9)
    sizes = {}
    for name in records:
        num_bytes = draw(weights)
        is_trained = name in reached and draw(st.booleans())
        sizes[name] = RecordBytes(num_bytes, num_bytes if is_trained else 0)
    timing = draw(st.sampled_from(UpdateTiming))
    prefetch = draw(st.none() | st.integers(0, 4))
    return DrawnStep(visits, sizes, timing, draw(st.integers(0, 20)), prefetch)
