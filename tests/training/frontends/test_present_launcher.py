"""Scripts import the present style under the vendor's names, in this process alone."""

from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.frontends.scripts.script import run_script

pytestmark = pytest.mark.usefixtures("in_process")

SCRIPT = """
import torch
import cerebras.pytorch as cstorch
import cerebras_pytorch as older
import cerebras_pytorch.experimental as oldest
import cerebras.pytorch.distributed as dist
import cerebras.pytorch.utils.tensorboard
from cerebras_appliance.errors import ApplianceNanError
from cerebras_appliance.run_utils import get_debug_args
from cerebras.modelzoo.layers import Doubled
from cerebras_pytorch.core import modes
from cerebras_pytorch.utils.nest import visit_torch_tensors
from cerebras.pytorch.optim.lr_scheduler import CosineDecayLR
from cerebras.pytorch.utils.data import DataExecutor, DataLoader

get_debug_args().debug_usr.worker_resource.memory_bytes = 1 << 30
backend = cstorch.backend("CPU", micro_batch_size=None)
model = Doubled()
compiled = cstorch.compile(model, backend)
optimizer = older.optim.SGD(model.parameters(), lr=1.0)
CosineDecayLR(optimizer, 0.5, 0.0, 10)

@oldest.trace
def step(batch):
    compiled(batch).backward()
    optimizer.step()

executor = DataExecutor(DataLoader(lambda: [torch.ones(1)]), cs_config=older.utils.CSConfig())
for batch in executor:
    step(batch)
print(model.weight.item(), dist.num_streamers(), cstorch.__version__ == older.__version__)
print(modes.TRAIN, executor.profiler.total_samples(), executor.profiler.total_time() > 0)
"""
LAYERS = """
from dataclasses import dataclass

import torch
import cerebras.pytorch as cstorch
from cerebras.pytorch.core.annotation import AnnotationMode, create_annotation
from cerebras.pytorch.lib import cerebras_pytorch_lib
from cerebras.pytorch.nn.functional import one_hot, sparse_act_matmul
from cerebras.pytorch.utils.kernel import kernel_annotater
from cerebras.pytorch.utils.utils import make_param_filter

assert one_hot(torch.tensor([2]), 3).tolist() == [[0, 0, 1]]
rows = sparse_act_matmul(torch.ones(2, 3), torch.tensor([1, 0]), torch.full((1, 3), 2.0))
assert rows.tolist() == [[6], [0]]
is_weight = make_param_filter(["*.[!1].weight", "head"])
assert [is_weight(name, None) for name in ("a.0.weight", "a.1.weight", "a.head")] == [1, 0, 0]
assert cstorch.amp.get_floating_point_dtype_str() == "float32" and cstorch.current_pol() == 0

@dataclass
class Named(AnnotationMode.Config):
    name: str

def named(name):
    def attribute(config, is_backward):
        return AnnotationMode.Attribute("names", [config.name])
    return create_annotation(Named, attribute, name=name, enable_fwd=True, enable_bwd=False)

class Doubled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    @named("double")
    @kernel_annotater("plain")
    @cstorch.pol(bwd_level=0)
    def forward(self, x):
        cerebras_pytorch_lib.set_attribute(x, "cs.internal", {})
        return (2 * self.weight * x).sum()
"""


def run_text(folder: Path, text: str) -> None:
    (folder / "cerebras" / "modelzoo").mkdir(parents=True)
    (folder / "cerebras" / "modelzoo" / "layers.py").write_text(LAYERS)
    path = folder / "train.py"
    path.write_text(text)
    run_script([str(path)])


def test_all_names_lead_to_one_style_and_other_packages_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_text(tmp_path, SCRIPT)
    assert capsys.readouterr().out == "0.0 1 True\ntrain 1 True\n"


def test_an_optimizer_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    text = "import cerebras.pytorch as cstorch\ncstorch.optim.Sophia"
    there = "'cerebras.pytorch.optim' has no attribute 'Sophia'; it has ASGD, Adadelta, Adafactor"
    with pytest.raises(AttributeError, match=there):
        run_text(tmp_path, text)


def test_a_mistake_names_the_line_of_the_script(tmp_path: Path) -> None:
    text = "import cerebras.pytorch as cstorch\n\ncstorch.utils.data.DataExecutor([])"
    with pytest.raises(OpenwaferError, match="there is no backend") as told:
        run_text(tmp_path, text)
    assert told.value.diagnostics[0].notes == ("at train.py:3",)
