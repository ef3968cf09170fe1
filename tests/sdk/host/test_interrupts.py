"""Whoever waits for a program that does not end can stop it, and hears where it was."""

import itertools
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.host import Region, Runtime, RuntimeOptions
from openwafer.sdk.host.pe_code import EngineKind
from tests.sdk.busy import interrupt_soon
from tests.sdk.host.hand_built import IMAGE, PROGRAM
from tests.tables import case

# So slow that the limit of cycles is minutes away.
ENDLESS = """\
module "pe.csl" stack 64 memory 24576
place "pe.csl" 7 1 "scale"
global @A 16 4
global @ptr_A 20 1 = 16
global @flags 21 1
entry &scale
entry &scale
fn &scale($k: f32) void {
head: loop_end
  %0 = random u16 !8
  jump[head] !8
}
"""
SILENT = ENDLESS.replace(": loop_end", ":").replace("jump[head] !8", "return !0")


def running(code: str, engine: EngineKind, threads: int = 1) -> Runtime:
    program = replace(PROGRAM, images=(replace(IMAGE, code=code, tasks=(), queues=()),))
    runtime = Runtime(program, RuntimeOptions(engine, threads, log_folder=None))
    runtime.load()
    runtime.run()
    # The simulator is compiled here, if ever, and not while the test looks at the clock.
    runtime.copy_from_device(lambda _: None, 1, Region(0, 0, 1, 1, 1))
    return runtime


@pytest.fixture(autouse=True)
def _interrupts_arrive() -> Iterator[None]:
    """Whoever starts the tests in the background may have them ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("engine", "num_threads"),
    [
        case(engine, number, by_default=(number == "2") == (engine is EngineKind.NATIVE))
        for engine in EngineKind
        for number in ("1", "2")
    ],
)
def test_an_endless_loop_ends_within_a_second_of_an_interrupt(
    engine: EngineKind, num_threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENWAFER_THREADS", num_threads)
    runtime = running(ENDLESS, engine)
    runtime.launch("scale", 1.0)
    begin = time.process_time()
    interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        runtime.stop()
    # Of the processor, since others may be at work; without an interrupt it takes minutes.
    assert time.process_time() - begin < 10.0


@contextmanager
def interrupt_as_a_thread_starts(number: int) -> Iterator[None]:
    """Raise in the call of Thread.start that has this number, from 1."""
    starts = itertools.count(1)

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        is_start = event == "call" and frame.f_code is threading.Thread.start.__code__
        if is_start and next(starts) == number:
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        yield
    finally:
        sys.setprofile(None)


def test_an_interrupt_before_all_bands_have_begun_lets_none_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENWAFER_THREADS", "2")
    runtime = running(ENDLESS, EngineKind.NATIVE)
    before = set(threading.enumerate())
    runtime.launch("scale", 1.0)
    with interrupt_as_a_thread_starts(2), pytest.raises(KeyboardInterrupt):
        runtime.stop()
    for thread in set(threading.enumerate()) - before:
        thread.join(10.0)
        assert not thread.is_alive()


def test_an_interrupt_tells_where_the_pes_are(capsys: pytest.CaptureFixture[str]) -> None:
    runtime = running(ENDLESS, EngineKind.NATIVE)
    runtime.launch("scale", 1.0)
    interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        runtime.stop()
    told = capsys.readouterr().err
    assert "openwafer: interrupted at cycle " in told
    assert "PE (0, 0) is at work in 'scale'" in told


@pytest.mark.parametrize("nonblock", [True, False])
def test_stopping_reports_a_command_that_does_not_end(nonblock: bool) -> None:
    runtime = running(SILENT, EngineKind.NATIVE)
    runtime.launch("scale", 1.0, nonblock=nonblock)
    with pytest.raises(OpenwaferError, match=r"(?s)not called unblock_cmd_stream.*end the command"):
        runtime.stop()
