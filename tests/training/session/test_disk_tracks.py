"""The disk's tracks in a trace: transfers come from the threads of the store, whenever they end."""

from openwafer.trace import Trace
from openwafer.training.session.step_meter import DiskTracks
from openwafer.training.store import Part
from openwafer.training.store.transfers import DiskTransfer
from openwafer.training.stream.device.device import CpuDevice, Recorder


class EndingRecorder(Recorder):
    """Its trace ends once it has been looked at."""

    _trace: Trace | None = None

    @property
    def trace(self) -> Trace | None:
        found, self._trace = self._trace, None
        return found

    @trace.setter
    def trace(self, trace: Trace | None) -> None:
        self._trace = trace


def test_a_transfer_that_ends_with_the_traced_step_disturbs_nobody() -> None:
    tracks, trace = DiskTracks(), Trace()
    tracks.recorder = EndingRecorder(CpuDevice())
    tracks.recorder.trace = trace
    tracks.add(DiskTransfer("read", "layer0", Part.WEIGHTS, 4096, 1.0, 2.0))
    assert '"name": "read layer0"' in trace.to_json()
