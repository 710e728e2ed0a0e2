"""Pairs of a prompt and an answer, from a JSON list or from JSON lines."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....errors import InputError, message
from .common import broken, check_regular

TRAIN = ("train.jsonl", "train.json", "alpaca_data.json")
TEST = ("test.jsonl", "test.json")
DESCRIPTION = (
    "train.jsonl or .json, or alpaca_data.json, and test.jsonl or .json: lines, or one list, of objects with "
    "question and answer, or with instruction, input and output"
)
REMEDY = 'Write {"question": ..., "answer": ...} or {"instruction": ..., "input": ..., "output": ...}.'

# Alpaca's prompts, on which models are often evaluated.
_FIRST = "Below is an instruction that describes a task"
_CONTEXT = ", paired with an input that provides further context"
_LAST = ". Write a response that appropriately completes the request.\n\n"


@dataclass(frozen=True)
class Pair:
    """A prompt and its answer."""

    prompt: str
    answer: str
    preamble: str = ""
    """What a model that reads English is told before the prompt."""


def is_present(folder: Path) -> bool:
    """True if the folder holds a training file in this layout."""
    return any((folder / name).is_file() for name in TRAIN)


def find_file(folder: Path, names: tuple[str, ...]) -> Path | None:
    """Return the file of one of these names, or None.

    Raises:
        InputError: If there are several.
    """
    found = [folder / name for name in names if (folder / name).is_file()]
    if len(found) > 1:
        got = " and ".join(path.name for path in found)
        raise InputError(message(f"one of {', '.join(names)} in {folder}", got, "Move the others away."))
    return found[0] if found else None


def read_pairs(path: Path) -> list[Pair]:
    """Read the pairs of a file.

    Raises:
        InputError: If the file is damaged or a pair has other keys; the message names the line, or the entry of a list.
    """
    check_regular(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise broken(path, "text in UTF-8", str(error)) from error
    entries = _lines(text, path) if path.suffix == ".jsonl" else _list(text, path)
    pairs = [_pair(entry, path, where) for where, entry in entries]
    if not pairs:
        raise broken(path, "pairs of a prompt and an answer", "none")
    return pairs


def _lines(text: str, path: Path) -> list[tuple[str, Any]]:
    lines = enumerate(text.split("\n"), 1)  # splitlines() would split at characters that JSON allows inside texts
    return [(f"line {at}", _parse(line, path, at)) for at, line in lines if line.strip()]


def _list(text: str, path: Path) -> list[tuple[str, Any]]:
    found = _parse(text, path, 1)
    if not isinstance(found, list):
        raise broken(path, "a list of objects", f"{type(found).__name__}; lines of objects belong in a .jsonl file")
    return [(f"entry {at}", entry) for at, entry in enumerate(found, 1)]


def _parse(text: str, path: Path, first: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        got = f"{error.msg}: line {first + error.lineno - 1}, column {error.colno}"
        raise broken(path, "JSON", got) from error
    except RecursionError as error:
        raise broken(path, "JSON", f"objects nested too deeply, from line {first} on") from error


def _pair(entry: Any, path: Path, where: str) -> Pair:
    if not isinstance(entry, dict):
        raise InputError(message(f"an object in {where} of {path}", type(entry).__name__, REMEDY))
    if "question" in entry and "answer" in entry:
        question, answer = (_text(entry, key, path, where) for key in ("question", "answer"))
        return Pair(f"{question}\n", answer)
    if "instruction" in entry and "output" in entry:
        instruction, output = (_text(entry, key, path, where) for key in ("instruction", "output"))
        given = _text(entry, "input", path, where) if "input" in entry else ""
        context = f"### Input:\n{given}\n\n" if given else ""
        prompt = f"### Instruction:\n{instruction}\n\n{context}### Response:"
        return Pair(prompt, output, f"{_FIRST}{_CONTEXT if given else ''}{_LAST}")
    got = ", ".join(map(str, entry)) or "no key"
    raise InputError(
        message(f"question and answer, or instruction and output, in {where} of {path}", got[:200], REMEDY)
    )


def _text(entry: dict[str, Any], key: str, path: Path, where: str) -> str:
    value = entry[key]
    if not isinstance(value, str):
        raise InputError(message(f"{key} as text in {where} of {path}", repr(value)[:80], REMEDY))
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(message(f"{key} as text in {where} of {path}", str(error)[:200], REMEDY)) from error
    return value
