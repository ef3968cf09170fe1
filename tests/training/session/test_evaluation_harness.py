"""Tasks of lm-eval find a run as they find its export with the library's own model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openwafer.training.session import Session
from tests.training.session.tiny_runs import GPT, TinyData, quiet, tiny_config

pytest.importorskip("lm_eval", reason="lm-eval is an extra")

import lm_eval
import transformers
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from openwafer.training.frontends.evaluation_harness import RunModel

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
LONG = "3 squared is 9, cubed 27; " * 4
PAIRS = (("3 squared", " is 9"), ("", "cubed"), ("5 squared ", "is"), (LONG, " is 8"))


@pytest.fixture(scope="module")
def models(data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunModel, HFLM]:
    folder = tmp_path_factory.mktemp("harness")
    config = replace(tiny_config(data, folder), model=GPT, steps=4)
    run = Session(config, console=quiet()).train().folder
    exported = Session(run, console=quiet()).export(folder / "exported")
    model = transformers.AutoModelForCausalLM.from_pretrained(exported).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    length = config.batch.sequence_length
    return RunModel(run), HFLM(model, tokenizer=tokenizer, max_length=length, batch_size=1)


def requests(kind: str, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(kind, {}, given, number) for number, given in enumerate(arguments)]


def test_log_likelihoods_are_those_of_the_librarys_model(models: tuple[RunModel, HFLM]) -> None:
    ours, theirs = (model.loglikelihood(requests("loglikelihood", *PAIRS)) for model in models)
    assert [one for one, _ in ours] == pytest.approx([one for one, _ in theirs], abs=1e-5)
    assert [greedy for _, greedy in ours] == [bool(greedy) for _, greedy in theirs]


def test_whole_texts_have_the_log_likelihood_of_the_librarys_model(
    models: tuple[RunModel, HFLM],
) -> None:
    asked = requests("loglikelihood_rolling", (LONG,), ("3",))
    ours, theirs = (model.loglikelihood_rolling(asked) for model in models)
    assert ours == pytest.approx(theirs, abs=1e-4)


def test_texts_end_before_a_stop_sequence_as_the_librarys(models: tuple[RunModel, HFLM]) -> None:
    asked = {"until": ["9"], "max_gen_toks": 6}
    ours, theirs = (
        model.generate_until(requests("generate_until", ("3 sq", asked))) for model in models
    )
    assert ours == theirs


@pytest.fixture
def squares(tmp_path: Path) -> TaskManager:
    """A task of its own, in files below a folder."""
    rows = [{"q": f"{n} squared is", "a": n % 2, "c": [f" {n}", f" {n * n}"]} for n in range(8)]
    data = tmp_path / "rows.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    task = {
        "task": "squares",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{q}}",
        "doc_to_choice": "{{c}}",
        "doc_to_target": "{{a}}",
    }
    (tmp_path / "squares.yaml").write_text(json.dumps(task))
    return TaskManager(include_path=str(tmp_path))


def test_a_task_of_a_local_file_has_the_same_results(
    models: tuple[RunModel, HFLM], squares: TaskManager
) -> None:
    ours, theirs = (
        lm_eval.simple_evaluate(model, tasks=["squares"], task_manager=squares)["results"]
        for model in models
    )
    assert ours["squares"]["acc,none"] == theirs["squares"]["acc,none"]
