"""Analyses that images of a program have in common.

While a body is analysed, everything that it asks of its image is a :class:`Question`: what a name
stands for, which address a variable has, what a callee is called. The same body asks the same
first question in every image, and with the same answer the same second one; so what was asked is
kept as a tree, and an image that gives the answers of a whole branch has the result at its end.
Questions are asked in their order there, too, so that an image comes out as if the body had been
analysed.

A body that looks at its image in another way leaves no record (:meth:`Analysis.unrecorded`).
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from openwafer.diagnostics import OpenwaferError


class NoKeyError(Exception):
    """A value has a part that no other image has."""


class Question(Protocol):
    """What a body asks of its image. It names nothing that only one image has."""

    def answer(self, sema: Any) -> Any:
        """The answer in the image that is analysed; asking may change the image."""

    def key(self, sema: Any, answer: Any) -> Hashable:
        """What is equal for equal answers: the answer, unless it has parts of its image.

        Raises:
            NoKeyError: no other image has the same.
        """
        key: Hashable = answer
        return key


@dataclass(eq=False, slots=True)
class _Fork:
    """What is asked at a node of the tree, and where each answer leads to.

    Attributes:
        ends: result and steps at compile time of a body that asks nothing more.
    """

    question: Question | None = None
    branches: dict[Hashable, "_Fork"] = field(default_factory=dict)
    ends: tuple[Any, int] | None = None


class Recording:
    """Questions of an analysis that goes on, with the keys of their answers.

    Attributes:
        parent: recording of the analysis that this one is a part of: its questions, too.
        is_lost: something was answered that no other image can have.
    """

    def __init__(self, parent: "Recording | None" = None, answers: Iterable[Any] = ()) -> None:
        self.parent = parent
        self.is_lost = False
        self.asked: list[tuple[Question, Hashable]] = []
        self._answers = deque(answers)
        self._known: dict[Question, Any] = {}

    def ask(self, sema: Any, question: Question) -> Any:
        """The answer; it is the one that was given before, where a branch was followed in vain."""
        if question in self._known:
            return self._known[question]
        is_given = bool(self._answers)
        answer = self._answers.popleft() if is_given else answered(sema, question, self.parent)
        try:
            self.asked.append((question, question.key(sema, answer)))
        except NoKeyError:
            self.is_lost = True
        self._known[question] = answer
        return answer


def answered(sema: Any, question: Question, recording: Recording | None) -> Any:
    """The answer, which is recorded where something is."""
    return question.answer(sema) if recording is None else recording.ask(sema, question)


class Memo:
    """Results of analyses, by what is analysed and by the answers to its questions."""

    def __init__(self) -> None:
        self._trees: dict[Hashable, _Fork] = {}
        self._numbers: dict[Hashable, int] = {}

    def number(self, key: Hashable) -> int:
        """Stands for a key, and is compared faster."""
        return self._numbers.setdefault(key, len(self._numbers))

    def recall(self, sema: Any, key: Hashable, analyse: Callable[[], Any]) -> Any:
        """The result of an analysis, which is done where no image before had the same.

        Args:
            key: of what is analysed, with all that it depends on but its questions.
            analyse: gives what other images can use.
        """
        root = self._trees.setdefault(key, _Fork())
        parent, sema.recording = sema.recording, None
        fork, answers = _followed(sema, root, parent)
        if fork.ends is not None and sema.spend_steps(fork.ends[1]):
            sema.recording = parent
            return fork.ends[0]
        recording = sema.recording = Recording(parent, answers)
        try:
            begin = sema.num_steps
            result = analyse()
            if sema.recording is recording:
                if not recording.is_lost:
                    _keep(root, recording, (result, sema.num_steps - begin))
                sema.recording = parent
        except BaseException:
            sema.recording = None
            raise
        return result


def _followed(sema: Any, fork: _Fork, parent: Recording | None) -> tuple[_Fork, list[Any]]:
    """The end of the branch whose answers the image gives, as far as there is one."""
    answers: list[Any] = []
    while fork.question is not None:
        try:
            answers.append(answered(sema, fork.question, parent))
            following = fork.branches.get(fork.question.key(sema, answers[-1]))
        except (OpenwaferError, NoKeyError):
            break
        if following is None:
            break
        fork = following
    return fork, answers


def _keep(fork: _Fork, recording: Recording, ends: tuple[Any, int]) -> None:
    for question, key in recording.asked:
        fork.question = fork.question or question
        fork = fork.branches.setdefault(key, _Fork())
    fork.ends = ends
