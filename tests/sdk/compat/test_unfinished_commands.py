"""Scripts that stop behind a function which does not open its command stream again."""

from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.compat.sdkruntimepybind import SdkRuntime
from openwafer.sdk.compiler.artifacts import compilation_of
from openwafer.sdk.csl.layout import build_program
from openwafer.sdk.csl.options import CompileOptions

LAYOUT = """
const memcpy = @import_module("<memcpy/get_params>", .{ .width = 1, .height = 1 });
layout {
  @set_rectangle(1, 1);
  @set_tile_code(0, 0, "pe.csl", .{ .memcpy_params = memcpy.get_params(0) });
  @export_name("rest", fn()void);
  @export_name("wait", fn()void);
}
"""
PE = """
param memcpy_params: comptime_struct;
const sys_mod = @import_module("<memcpy/memcpy>", memcpy_params);
const queue = @get_input_queue(3);
const in = @get_dsd(fabin_dsd, .{ .extent = 1, .input_queue = queue });
var number: u32 = 0;
fn rest() void { number = 1; }
fn wait() void { @mov32(&number, in); }
comptime {
  @initialize_queue(queue, .{ .color = @get_color(5) });
  @export_symbol(rest);
  @export_symbol(wait);
}
"""


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SdkRuntime:
    monkeypatch.chdir(tmp_path)
    Path("layout.csl").write_text(LAYOUT)
    Path("pe.csl").write_text(PE)
    options = CompileOptions(arch=Arch.WSE3, is_memcpy=True)
    compilation_of(build_program(Path("layout.csl"), options)).write(tmp_path / "out")
    return started()


def started() -> SdkRuntime:
    runner = SdkRuntime("out", suppress_simfab_trace=True)
    runner.load()
    runner.run()
    return runner


def test_a_stop_while_all_pes_rest_is_told(
    runner: SdkRuntime, capsys: pytest.CaptureFixture[str]
) -> None:
    runner.launch("rest")
    runner.stop()
    told = capsys.readouterr().err
    assert "warning[fabric-deadlock]: nothing moves any more" in told
    assert "PE (0, 0) is idle and has not called unblock_cmd_stream" in told
    assert "end the command with unblock_cmd_stream()" in told
    assert "a launch or a copy behind this one would wait for ever" in told


def test_a_stop_while_a_pe_waits_is_an_error(runner: SdkRuntime) -> None:
    runner.launch("wait")
    with pytest.raises(OpenwaferError, match=r"(?s)fabric-deadlock.*waits at pe.csl:8"):
        runner.stop()


def test_a_command_behind_one_without_an_end_is_an_error(runner: SdkRuntime) -> None:
    runner.launch("rest")
    with pytest.raises(OpenwaferError, match="has not called unblock_cmd_stream"):
        runner.launch("rest", nonblock=False)


@pytest.mark.usefixtures("runner")
def test_checked_runs_may_not_stop_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENWAFER_CHECK", "error")
    checked = started()
    checked.launch("rest")
    with pytest.raises(OpenwaferError, match="has not called unblock_cmd_stream"):
        checked.stop()
