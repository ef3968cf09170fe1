"""Every script under benchmarks/ runs, at its quickest, and its own checks hold."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
# How each is quickest; what it writes goes to the working directory, which is empty.
QUICKEST: dict[str, str] = {
    "bench_activations.py": "--sizes 256 --tokens 128 --rounds 1",
    "bench_agreement.py": "",
    "bench_checks.py": "--repeats 1",
    "bench_codegen.py": "--repeats 1",
    "bench_compile.py": "",
    "bench_comptime.py": "--scale 0.02",
    "bench_depth.py": "--width 16 --layers 2 --batch 2 --tokens 8 --steps 1 --train 1 --keys 1100",
    "bench_disk.py": "--folder . --records 2 --parameters 1048576 --rounds 1",
    "bench_experts.py": "--experts 8 --tokens 4 --width 64 --layers 2 --steps 2",
    "bench_fabric.py": "--size 8 --threads 1 2",
    "bench_front_ends.py": "--steps 3 --processes 1",
    "bench_generation.py": "--quick --texts 1 2",
    "bench_kernels.py": "--collectives 4 --lengths 8 --gemm 1 --tile 8",
    "bench_masks.py": "--size 512 --rounds 1",
    "bench_metering.py": "--steps 2",
    "bench_noise_scale.py": "--width 64 --layers 1 --batch 4 --tokens 32 --rounds 2 --steps 120",
    "bench_ordered_sums.py": "--sizes 1 --ranks 2 --rounds 1",
    "bench_prediction.py": "--only resident --steps 1 --out prediction.json",
    "bench_record.py": "--size 4 --turns 1",
    "bench_reads_of_owners.py": "--systems 1 2 --layers 4",
    "bench_debugger.py": "--cycles 2000 --size 1",
    "bench_snapshots.py": "--size 4",
    "bench_samples.py": "--set steps=2 --set evaluate=null --tokens 8 --seeds 1",
    "bench_sparse.py": "--short --rounds 1 --shapes 1024x1024 --tokens 512 --sparsities 0.9",
    "bench_sparse_neighbours.py": "",
    "bench_sparse_step.py": "--hidden 256 --layers 1 --tokens 1 64 --sparsity 0.9 --rounds 1",
    "bench_step.py": "--steps 2 --rounds 1",
    "bench_stream.py": "--quick --rounds 1 --out stream.json",
    "bench_streamed.py": "--features 8 --tokens 8 --outputs 4 --shares 0.5",
    "bench_systems.py": "--kinds openwafer fsdp2 --steps 4 --hidden 128 --layers 1",
    "bench_timing.py": "--chain 8",
    "bench_tutorial.py": "--repeats 1",
    "bench_update.py": "--records 1 --rounds 1",
    "bench_view.py": "--size 2 --cycles 2000 --times 1",
    "bench_wafer_kernels.py": "gemv --width 4 --height 3",
    "bench_wafer.py": "--width 16 --height 16 --generations 2 --profile life.html",
    "beyond_memory.py": "--hidden 256 --layers 4 --heads 4 --steps 6 --turns 1 "
    "--device-memory 48MiB --host-memory 96MiB",
    "compare/run.py": "--quick --rounds 1 --steps 1 --only openwafer openwafer-disk fsdp2 --out .",
    "fuzz_csl.py": "--minutes 0.2",
    "gpu/measure.py": "--device cpu --out .",
    "kernel_pictures.py": "--picture kernels.png --pes 4 --lengths 4 --tiles 4 --pencils 4",
    "kernel_sheet.py": "--picture sheet.png --only axpy gemv",
    "learning_rate_transfer.py": "lr --widths 64 --neighbours 1 --seeds 1 --steps 3",
    "modelled_reads_of_owners.py": "",
    "scaling_study.py": "study --tokens-a-parameter 0.05",
    "sparse_larger_than_memory.py": "--hidden 128 --heads 2 --layers 4 --steps 1 "
    "--device-memory 64MiB",
    "sparse_shapes.py": "--steps 4 --seeds 1 --shapes dense rigl",
    "walks.py": "",
}
# What other scripts import, or start by themselves.
PARTS = {"termination.py", "loop_of_deepspeed.py"}
ON_TWO_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def test_the_table_names_every_script() -> None:
    found = {path.name for path in BENCHMARKS.glob("*.py")} - PARTS
    assert found == {name for name in QUICKEST if "/" not in name}


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICKEST)
def test_a_script_runs_at_its_quickest(name: str, tmp_path: Path) -> None:
    launcher = ON_TWO_RANKS if name == "bench_agreement.py" else ()
    command = [sys.executable, *launcher, str(BENCHMARKS / name), *QUICKEST[name].split()]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
