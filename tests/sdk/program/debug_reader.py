"""A reader of program files, made from docs/formats/openwafer-program.md alone."""

import base64
import io
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

FLOATS = {"f16": "<e", "f32": "<f", "comptime_float": "<d"}


class DebugReader:
    """The tables of a file."""

    def __init__(self, path: Path) -> None:
        with zipfile.ZipFile(path) as archive:
            self.program = json.loads(archive.read("program.json"))
            self.image_of = np.load(io.BytesIO(archive.read("image_of.npy")))
            self.parameters = np.load(io.BytesIO(archive.read("parameters.npy")))
        self.debug, self.places = self.program["debug"], self.program["places"]

    def value(self, number: int, data: bytes) -> Any:
        """The value of a type that some bytes hold."""
        kind = self.debug["types"][number]
        data = data[: kind["num_bytes"]] if kind["num_bytes"] else data
        whole = int.from_bytes(data, "little", signed=kind["is_signed"])
        match kind["kind"]:
            case "float":
                return struct.unpack(FLOATS[kind["name"]], data)[0]
            case "array":
                size = self.debug["types"][kind["element"]]["num_bytes"]
                parts = (data[at : at + size] for at in range(0, len(data), size))
                flat = np.array([self.value(kind["element"], part) for part in parts], object)
                return flat.reshape(kind["shape"]).tolist()
            case "struct" | "union":
                return {one["name"]: self.field(one, whole) for one in kind["fields"]}
            case "enum":
                return {value: name for name, value in kind["members"]}.get(whole, whole)
            case "dsd":
                return struct.unpack(f"<{len(data) // 2}H", data)
            case "text":
                return data.decode()
            case "bool":
                return bool(whole)
            case _:
                return whole

    def field(self, one: dict[str, Any], whole: int) -> Any:
        """The value of a field in the bits of its struct."""
        bits, kind = one["num_bits"], self.debug["types"][one["type"]]
        number = whole >> one["bit_offset"] & (1 << bits) - 1
        if kind["is_signed"] and number >> bits - 1:
            number -= 1 << bits
        size = max(kind["num_bytes"], -(-bits // 8))
        return self.value(one["type"], number.to_bytes(size, "little", signed=number < 0))

    def globals(self, x: int, y: int, memory: bytes) -> dict[str, Any]:
        """The values of a PE's variables and constants, by name."""
        image = self.program["images"][self.image_of[y, x]]
        found = {}
        for one in (self.debug["variables"][n] for n in image["names"]["variables"]):
            if one["home"] == "memory":
                found[one["name"]] = self.value(one["type"], memory[2 * one["address"] :])
            elif one["home"] == "constant":
                found[one["name"]] = self.value(one["type"], base64.b64decode(one["content"]))
            elif one["home"] == "parameter":
                raw = int(self.parameters[y, x, one["address"]]) & (1 << 64) - 1
                found[one["name"]] = self.value(one["type"], raw.to_bytes(8, "little"))
        return found

    def stack(self, x: int, y: int, memory: bytes) -> list[tuple[str, int, dict[str, Any]]]:
        """Functions that wait, from the entry on: name, line, and the variables that are there."""
        image = self.program["images"][self.image_of[y, x]]
        words = struct.unpack(f"<{len(memory) // 2}H", memory)
        frames = {(f := self.debug["frames"][n])["function"]: f for n in image["names"]["frames"]}
        functions = [self.debug["functions"][n] for n in image["names"]["functions"]]
        begin = image["stack_base"]
        name, found = image["entries"][words[begin]]["function"], []
        begin += 1
        while name:
            frame, function = frames[name], next(f for f in functions if f["name"] == name)
            resume = frame["resumes"][words[begin] - 1]
            place = self.places[resume["place"]]
            shown = self.locals(frame, function, resume["saved"], memory[2 * begin :])
            found.append((place["inlined"] or name, place["line"], shown))
            name = resume["callee"]
            name = functions[words[begin + frame["callee"]]]["name"] if name == "*" else name
            begin += frame["num_words"]
        return found

    def locals(
        self, frame: dict[str, Any], function: dict[str, Any], saved: list[str], words: bytes
    ) -> dict[str, Any]:
        """The values of a function's variables that its frame holds."""
        slots, found = dict(frame["slots"]), {}
        for one in (self.debug["variables"][n] for n in function["variables"]):
            if one["home"] == "constant":
                found[one["name"]] = self.value(one["type"], base64.b64decode(one["content"]))
            elif one["home"] == "slot" and one["slot"] in saved:
                found[one["name"]] = self.value(one["type"], words[2 * slots[one["slot"]] :])
        return found
