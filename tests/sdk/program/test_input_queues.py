"""Which queue a color of WSE-2 goes through that the program gives none."""

from openwafer.sdk.program.image import QueueBinding, TaskBinding, TaskKind
from openwafer.sdk.program.input_queues import allocated, described

NAMED = QueueBinding(True, 7, 3)
DATA = TaskBinding(TaskKind.DATA, 4, 0)
CONTROL = TaskBinding(TaskKind.CONTROL, 40, 0)


def chosen(*args: object) -> dict[int, int]:
    bindings = allocated(*args).bindings  # type: ignore[arg-type]
    return {binding.color: binding.queue for binding in bindings if binding.is_chosen}


def test_what_reads_comes_before_data_tasks_from_the_last_free_queue_on() -> None:
    assert chosen((NAMED,), (DATA,), {6}, {9, 5}) == {5: 5, 9: 4, 4: 3}


def test_colors_that_are_left_over_take_turns() -> None:
    found = allocated((), (), (), range(10))
    assert found.sharing == (7, 8, 9)
    assert [binding.queue for binding in found.bindings] == [6, 5, 4, 3, 2, 1, 0]


def test_data_tasks_share_the_last_queue_when_none_is_free() -> None:
    tasks = [TaskBinding(TaskKind.DATA, color, 0) for color in range(9)]
    assert chosen((), tasks) == {**dict(zip(range(8), range(7, -1, -1), strict=True)), 8: 7}


def test_all_other_colors_reach_control_tasks_through_one_queue() -> None:
    assert chosen((NAMED,), (CONTROL,)) == dict.fromkeys({*range(24)} - {3}, 6)


def test_outputs_that_name_no_queue_share_the_first() -> None:
    bindings = allocated((), (), sending=(3, 5)).bindings
    assert list(described(bindings)) == ["output_queue 0: color 3*, 5*"]


def test_each_queue_is_described_with_its_colors() -> None:
    bindings = allocated((NAMED, QueueBinding(False, 2, 3)), (DATA,)).bindings
    assert list(described(bindings)) == [
        "input_queue 6: color 4*",
        "input_queue 7: color 3",
        "output_queue 2: color 3",
    ]
