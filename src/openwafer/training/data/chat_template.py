"""Chats to token ids by the template of a tokenizer, and which of them the assistant wrote."""

import json
import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import jinja2
import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.data.chats import (
    ANSWERING,
    ARGUMENTS,
    CALLS,
    OLDER_CALLS,
    TEXTS,
    TOOLS,
    Chat,
)
from openwafer.training.data.shards import TokenisedDocument

_GENERATION: Final = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""By which a template marks what the assistant writes."""


@dataclass(frozen=True, eq=False)
class ChatTemplate:
    """The template of a tokenizer folder, as transformers applies it.

    Attributes:
        folder: it is from.
        is_answers_only: whether answers alone are targets, or all tokens.
    """

    folder: Path
    is_answers_only: bool
    _tokenizer: PreTrainedTokenizerFast

    @classmethod
    def load(cls, folder: Path, *, is_answers_only: bool) -> "ChatTemplate":
        """The template in `chat_template.jinja` or `tokenizer_config.json` of a folder."""
        tokenizer = (
            PreTrainedTokenizerFast.from_pretrained(folder, split_special_tokens=False)
            if folder.is_dir()
            else None
        )
        if tokenizer is None or tokenizer.chat_template is None:
            raise error(
                "no-chat-template",
                f"{folder} has no chat template, by which the chats of the source become tokens",
                help="name the folder of a tokenizer that has a chat_template.jinja, or one in its "
                "tokenizer_config.json",
            )
        return cls(folder, is_answers_only, tokenizer)

    def encode(self, chat: Chat, origin: str) -> TokenisedDocument:
        """Token ids as `apply_chat_template` gives them; no other end of text is added.

        Args:
            chat: its messages.
            origin: names it in errors.
        """
        try:
            self._require_written(chat, origin)
            if not self.is_answers_only:
                return TokenisedDocument(self._ids(self._text(chat)))
            if chat.num_prompt or not _GENERATION.search(self._tokenizer.get_chat_template()):
                return self._by_beginnings(chat, origin)
            return self._by_marks(chat, origin)
        except (jinja2.TemplateError, TypeError, ValueError) as problem:
            raise error(
                "bad-chat",
                f"{origin}: the chat template of {self.folder} does not take this chat: {problem}",
                notes=(f"its roles are {', '.join(str(m['role']) for m in chat.messages)}",),
                help="mend the row, leave it out, or choose another template",
            ) from problem

    def _require_written(self, chat: Chat, origin: str) -> None:
        """Refuse a chat with tools, calls or answers of some, which the template leaves out."""
        _, marks = chat.marked
        if not chat.tools and not marks:
            return
        text = self._text(chat)
        lost = self._lost_of(chat, text)
        for what in (TOOLS, *marks.values(), TEXTS):
            if what in lost:
                raise self._lost(what, origin)
        for arguments in chat.arguments_as_text:
            if json.dumps(arguments, ensure_ascii=False) in text:
                raise error(
                    "arguments-in-quotes",
                    f"{origin}: a call has the arguments {arguments!r:.60}, a text, and the chat "
                    f"template of {self.folder} writes it in quotes, where it expects an object",
                    help="write the arguments as an object: json.loads(arguments)",
                )

    def _lost_of(self, chat: Chat, text: str) -> AbstractSet[str]:
        """What the text of a chat does not have."""
        marked, marks = chat.marked
        written = self._text(marked)
        found = {what for mark, what in marks.items() if mark in written}
        lost = {what for mark, what in marks.items() if mark not in written}
        if chat.tools and TOOLS not in found and self._text(replace(chat, tools=())) == text:
            lost.add(TOOLS)
        # A template may write those arguments alone that the tool describes.
        is_doubtful = ARGUMENTS in lost and ARGUMENTS not in found
        if is_doubtful and self._text(chat.without_arguments()) != text:
            lost.discard(ARGUMENTS)
        textless = chat.without_texts()
        if textless != chat and self._text(textless) == text:
            lost.add(TEXTS)
        return lost

    def _lost(self, what: str, origin: str) -> OpenwaferError:
        return error(
            "tools-not-written",
            f"{origin}: the chat template of {self.folder} does not write the {what} of "
            "this chat, or not all, which would be lost",
            help="write each call as tool_calls: [{function: ...}], as templates of today read it"
            if what == OLDER_CALLS
            else "take a template that writes them, or leave them out of the data",
        )

    def _by_marks(self, chat: Chat, origin: str) -> TokenisedDocument:
        ids, are_targets = self._generated(chat)
        marked, marks = chat.marked
        if {CALLS, OLDER_CALLS} & set(marks.values()):
            others, are_learned = self._generated(marked)
            if np.array_equal(others[are_learned], ids[are_targets]):
                raise error(
                    "calls-not-learned",
                    f"{origin}: the chat template of {self.folder} writes the calls of tools "
                    "outside of {% generation %}, so that none is learned",
                    help="put them between {% generation %} and {% endgeneration %} in the "
                    "template, or set learn: all",
                )
        return TokenisedDocument(ids, are_targets)

    def _generated(self, chat: Chat) -> tuple[NDArray[np.uint32], NDArray[np.bool_]]:
        """The ids, and which the template marks as generated."""
        found = self._tokenizer.apply_chat_template(
            list(chat.messages),
            tools=_tools_for_template(chat),
            tokenize=True,
            return_dict=True,
            return_assistant_tokens_mask=True,
        )
        ids, marks = found["input_ids"], found["assistant_masks"]
        return np.array(ids, np.uint32), np.array(marks, np.bool_)

    @cached_property
    def _tells_roles_apart(self) -> bool:
        """Whether an answer has another text than a question behind it with the same content."""
        roles = ("user", ANSWERING, "user")
        chat = Chat(tuple({"role": role, "content": "text"} for role in roles))
        try:
            one, two, three = (self._text(chat.first(number)) for number in (1, 2, 3))
        except jinja2.TemplateError:
            return True  # what it wants of a chat is told of the row that lacks it
        return two.removeprefix(one) != three.removeprefix(two)

    def _by_beginnings(self, chat: Chat, origin: str) -> TokenisedDocument:
        """An answer begins where the text of the messages before it ends, with its own header."""
        if not chat.num_prompt and not self._tells_roles_apart:
            raise error(
                "roles-not-written",
                f"{origin}: the chat template of {self.folder} writes an answer as it writes a "
                "question, so that a model could not tell them apart",
                help="write {{ message.role }}, or what stands for it, with each content in the "
                "template, or set learn: all",
            )
        text = self._text(chat)
        found = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        begins = np.array([begin for begin, _ in found["offset_mapping"]], np.int64)
        are_targets = np.zeros(len(begins), np.bool_)
        for start, stop in self._answers(chat, text, origin):
            are_targets |= (start <= begins) & (begins < stop)
        return TokenisedDocument(np.array(found["input_ids"], np.uint32), are_targets)

    def _answers(self, chat: Chat, text: str, origin: str) -> list[tuple[int, int]]:
        """Where answers begin and end in the text of a chat."""
        if chat.num_prompt:
            prompt = chat.first(chat.num_prompt)
            return [(self._end(prompt, text, origin, is_asking=True), len(text))]
        numbers = [n for n, one in enumerate(chat.messages) if one["role"] == ANSWERING]
        last = len(chat.messages) - 1
        return [
            (
                self._end(chat.first(number), text, origin, is_asking=True),
                len(text) if number == last else self._end(chat.first(number + 1), text, origin),
            )
            for number in numbers
        ]

    def _end(self, first: Chat, text: str, origin: str, *, is_asking: bool = False) -> int:
        """Where the first messages end in the text of all, with the header of an answer or not."""
        if not first.messages:
            raise ValueError("its first message is an answer, and nothing before says where")
        beginning = self._text(first, is_asking=is_asking)
        if not text.startswith(beginning):
            raise self._unmarked(beginning, text, origin)
        return len(beginning)

    def _unmarked(self, beginning: str, text: str, origin: str) -> OpenwaferError:
        place = next(
            (n for n, (one, two) in enumerate(zip(beginning, text, strict=False)) if one != two),
            len(text),
        )
        return error(
            "unmarked-answers",
            f"{origin}: the chat template of {self.folder} does not say where answers are: it "
            "writes the first messages in another way where others follow",
            notes=(
                f"alone: ...{beginning[max(0, place - 20) : place + 20]!r}",
                f"with others: ...{text[max(0, place - 20) : place + 20]!r}",
            ),
            help="enclose what the assistant writes in {% generation %} and {% endgeneration %} in "
            "the template, or set learn: all",
        )

    def _text(self, chat: Chat, *, is_asking: bool = False) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                list(chat.messages),
                tools=_tools_for_template(chat),
                tokenize=False,
                add_generation_prompt=is_asking,
            )
        )

    def _ids(self, text: str) -> np.ndarray[Any, np.dtype[np.uint32]]:
        return np.array(self._tokenizer(text, add_special_tokens=False)["input_ids"], np.uint32)


def _tools_for_template(chat: Chat) -> list[Any] | None:
    """None where there are no tools: some templates write a header for an empty list."""
    return list(chat.tools) or None
