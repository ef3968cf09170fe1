"""Chats, as data sets hold them: lists of messages that have a role and a content."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

from openwafer.diagnostics import OpenwaferError, error

_KEYS: Final = {"role", "content"}
_OTHER_KEYS: Final = {"from", "value"}
"""Of messages as ShareGPT writes them."""
_CALLS: Final = "tool_calls"
_OLDER_CALL: Final = "function_call"
"""One call, as messages were written before there were tools."""
_OTHER_ROLES: Final[Mapping[str, str]] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "system": "system",
}
TOOLS: Final = "tools"
CALLS: Final = "calls of tools"
ARGUMENTS: Final = "arguments of calls"
OLDER_CALLS: Final = f"calls in {_OLDER_CALL}"
TEXTS: Final = "texts beside calls"
_ANSWERED: Final = ("tool", "function")
"""Roles of the messages that a tool has answered, the older one last."""
ANSWERING: Final = "assistant"
"""Role of the messages that a model learns to write."""


@dataclass(frozen=True)
class Chat:
    """Messages, as templates read them.

    Attributes:
        messages: each with a role and a content or calls of tools, and what else its template
            reads.
        num_prompt: how many of the first are a prompt, which no model learns to write.
        tools: which the model is told of, as JSON describes them.
    """

    messages: tuple[Mapping[str, Any], ...]
    num_prompt: int = 0
    tools: tuple[Mapping[str, Any], ...] = ()

    def first(self, num_messages: int) -> "Chat":
        """The chat up to some message."""
        return replace(self, messages=self.messages[:num_messages])

    @property
    def arguments_as_text(self) -> tuple[str, ...]:
        """The arguments of calls that are no objects, but the JSON of one."""
        calls = (call for one in self.messages for call in one.get(_CALLS) or ())
        found = (_function_of(call).get("arguments") for call in calls)
        return tuple(one for one in found if isinstance(one, str))

    @cached_property
    def marked(self) -> tuple["Chat", Mapping[str, str]]:
        """The chat with marks in each tool, each call of one with its arguments, and each answer.

        Returns:
            The chat, and what each mark stands in.
        """
        marks: dict[str, str] = {}
        tools = tuple(_with_name_marked(one, marks, TOOLS) for one in self.tools)
        messages = tuple(_marked(one, marks) for one in self.messages)
        return replace(self, messages=messages, tools=tools), marks

    def without_arguments(self) -> "Chat":
        """The chat, whose calls have no arguments."""
        return replace(self, messages=tuple(_without_arguments(one) for one in self.messages))

    def without_texts(self) -> "Chat":
        """The chat, whose messages with calls have no text beside them."""
        return replace(self, messages=tuple(_without_text(one) for one in self.messages))


@dataclass(frozen=True)
class Completion:
    """A text that is learned behind another, which is not.

    Attributes:
        prompt: what stands before.
        text: what a model learns to write.
    """

    prompt: str
    text: str


Content = str | Chat | Completion


def is_chat(keys: Collection[str]) -> bool:
    """Whether objects of these keys are messages."""
    return any(message <= set(keys) for message in (_KEYS, _OTHER_KEYS, {"role", _CALLS}))


def item_keys(value: object) -> Collection[str]:
    """Keys of the objects in a list."""
    first = value[0] if isinstance(value, list) and value else None
    return first.keys() if isinstance(first, dict) else ()


def chat_of(value: list[Any], column: str, origin: str) -> Chat:
    """The chat in a list of objects whose first is a message."""
    numbered = enumerate(value, start=1)
    return Chat(tuple(_message(one, f"{origin}: '{column}', message {n}") for n, one in numbered))


def _message(found: object, origin: str) -> Mapping[str, Any]:
    if not isinstance(found, dict) or not is_chat(found.keys()):
        raise _bad_message(
            f"{origin}: expected an object with role and content, found {found!r:.60}"
        )
    # Tables write a null where a message has no such key.
    message = {key: one for key, one in found.items() if one is not None}
    if not message.keys() >= _KEYS and message.keys() >= _OTHER_KEYS:
        role = _OTHER_ROLES.get(str(message["from"]))
        if role is None:
            raise _bad_message(
                f"{origin} is from {message['from']!r}, expected {', '.join(_OTHER_ROLES)}"
            )
        message = {"role": role, "content": message["value"]}
    if calls := message.get(_CALLS):
        _require_calls(calls, origin)
        # Templates ask whether it is none, and not whether it is there.
        message |= {"content": None} if "content" in found and found["content"] is None else {}
    if older := message.get(_OLDER_CALL):
        _require_calls([older], origin, _OLDER_CALL)
    is_call = (calls or older) and message.get("content") is None
    for key in ("role",) if is_call else ("role", "content"):
        if not isinstance(message.get(key), str):
            raise _bad_message(f"{origin}: its {key} is {message.get(key)!r:.60}, expected a text")
    return message


def _require_calls(calls: object, origin: str, key: str = _CALLS) -> None:
    if not isinstance(calls, list):
        raise _bad_message(f"{origin}: its {key} are {calls!r:.60}, expected a list")
    for one in calls:
        if not isinstance(_function_of(one).get("name"), str):
            raise _bad_message(f"{origin}: its {key} hold {one!r:.60}, which names no function")


def _function_of(call: object) -> Mapping[str, Any]:
    function = call.get("function", call) if isinstance(call, dict) else None
    return function if isinstance(function, dict) else {}


def _marked(message: Mapping[str, Any], marks: dict[str, str]) -> Mapping[str, Any]:
    found = dict(message)
    if calls := message.get(_CALLS):
        found[_CALLS] = [_with_call_marked(one, marks, CALLS) for one in calls]
    if older := message.get(_OLDER_CALL):
        found[_OLDER_CALL] = _with_call_marked(older, marks, OLDER_CALLS)
    if message["role"] in _ANSWERED:
        found["content"] += _new_mark(marks, "answers of tools")
    return found


def _new_mark(marks: dict[str, str], what: str) -> str:
    mark = f"_mark_{len(marks)}_"
    marks[mark] = what
    return mark


def _with_call_marked(
    call: Mapping[str, Any], marks: dict[str, str], what: str
) -> Mapping[str, Any]:
    return _with_arguments_marked(_with_name_marked(call, marks, what), marks)


def _with_name_marked(
    call: Mapping[str, Any], marks: dict[str, str], what: str
) -> Mapping[str, Any]:
    name = _function_of(call).get("name")
    # A tool may be described without a name, by a template's own custom.
    return call if name is None else _changed(call, name=f"{name}{_new_mark(marks, what)}")


def _with_arguments_marked(call: Mapping[str, Any], marks: dict[str, str]) -> Mapping[str, Any]:
    arguments = _function_of(call).get("arguments")
    if not arguments:
        return call  # nothing to lose
    if isinstance(arguments, str):
        return _changed(call, arguments=arguments + _new_mark(marks, ARGUMENTS))
    if isinstance(arguments, dict):
        return _changed(call, arguments={**arguments, _new_mark(marks, ARGUMENTS): 0})
    return call


def _without_arguments(message: Mapping[str, Any]) -> Mapping[str, Any]:
    found = dict(message)
    if calls := message.get(_CALLS):
        found[_CALLS] = [_call_alone(one) for one in calls]
    if older := message.get(_OLDER_CALL):
        found[_OLDER_CALL] = _call_alone(older)
    return found


def _without_text(message: Mapping[str, Any]) -> Mapping[str, Any]:
    is_call = message.get(_CALLS) or message.get(_OLDER_CALL)
    return {**message, "content": ""} if is_call and message.get("content") else message


def _call_alone(call: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = _function_of(call).get("arguments")
    return _changed(call, arguments="" if isinstance(arguments, str) else {}) if arguments else call


def _changed(call: Mapping[str, Any], **other: Any) -> Mapping[str, Any]:
    function = {**_function_of(call), **other}
    return {**call, "function": function} if "function" in call else function


def tools_of(value: object, column: str, origin: str) -> tuple[Mapping[str, Any], ...]:
    """The tools that a row describes: a list of objects, the JSON of one, or none."""
    found: Any = value or []
    if isinstance(value, str):
        try:
            found = json.loads(value)
        except json.JSONDecodeError:
            found = None
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise error(
            "bad-tools",
            f"{origin}: '{column}' holds {value!r:.60}, expected a list of objects, or its JSON",
            help="write each tool as an object, as transformers' get_json_schema describes it",
        )
    return tuple(found)


def _bad_message(what: str) -> OpenwaferError:
    return error("bad-message", what, help="mend the row, or leave it out")
