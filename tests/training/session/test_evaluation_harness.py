"""Tasks of lm-eval find a run as they find its export with the library's own model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.training.session import Sampling, Session
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
def run(data: TinyData, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = replace(tiny_config(data, tmp_path_factory.mktemp("runs")), model=GPT, steps=4)
    return Session(config, console=quiet()).train().folder


@pytest.fixture(scope="module")
def models(run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunModel, HFLM]:
    session = Session(run, console=quiet())
    exported = session.export(tmp_path_factory.mktemp("harness") / "exported")
    model = transformers.AutoModelForCausalLM.from_pretrained(exported).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(exported)
    length = session.config.batch.sequence_length
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


def test_texts_of_one_sampling_are_written_side_by_side_in_their_order(
    models: tuple[RunModel, HFLM],
) -> None:
    prompts = ("3 sq", "5", "7 squared is", "9")
    sizes = (6, 3, 6, 3)
    asked = [(prompt, {"max_gen_toks": most}) for prompt, most in zip(prompts, sizes, strict=True)]
    together = models[0].generate_until(requests("generate_until", *asked))
    alone = [models[0].generate_until(requests("generate_until", one)) for one in asked]
    assert [[text] for text in together] == alone


def test_what_a_task_draws_is_what_the_run_draws(run: Path, models: tuple[RunModel, HFLM]) -> None:
    options = {"do_sample": True, "temperature": 2.0, "top_k": 9, "top_p": 0.9, "max_gen_toks": 8}
    [drawn] = models[0].generate_until(requests("generate_until", ("3 sq", options)))
    sampling = Sampling(8, temperature=2.0, top_k=9, top_p=0.9)
    assert drawn == Session(run, console=quiet()).generate("3 sq", sampling)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"do_sample": True}, "do_sample: true without a temperature, and lm-eval takes 0"),
        ({"num_beams": 4, "min_p": 0.1}, "asks for num_beams, min_p, which does not exist here"),
    ],
)
def test_a_sampling_that_is_not_known_is_refused(
    models: tuple[RunModel, HFLM], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OpenwaferError, match=message):
        models[0].generate_until(requests("generate_until", ("3", {}), ("3", options)))


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
