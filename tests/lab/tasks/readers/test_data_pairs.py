"""Pairs of prompts and answers: both layouts, and files that are damaged or incomplete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infobatch.errors import InputError
from infobatch.lab.tasks.catalogue import TASKS, locate, make_task
from infobatch.lab.tasks.readers.pairs import Pair, read_pairs

ALPACA = [
    {"instruction": "Add.", "input": "1, 2", "output": "3"},
    {"instruction": "Say hello.", "input": "", "output": "Hello."},
    {"instruction": "Say nothing.", "output": ""},
]


def lines(path: Path, *entries: Any) -> Path:
    path.write_text("".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries), encoding="utf-8")
    return path


def test_a_list_as_in_alpaca(tmp_path: Path) -> None:
    (tmp_path / "alpaca_data.json").write_text(json.dumps(ALPACA, indent=4))
    pairs = read_pairs(tmp_path / "alpaca_data.json")
    assert [pair.answer for pair in pairs] == ["3", "Hello.", ""]
    # The prompts of Stanford Alpaca's train.py, literally.
    assert pairs[0].preamble + pairs[0].prompt == (
        "Below is an instruction that describes a task, paired with an input that provides further context. "
        "Write a response that appropriately completes the request.\n\n"
        "### Instruction:\nAdd.\n\n### Input:\n1, 2\n\n### Response:"
    )
    assert pairs[1].preamble + pairs[1].prompt == (
        "Below is an instruction that describes a task. "
        "Write a response that appropriately completes the request.\n\n"
        "### Instruction:\nSay hello.\n\n### Response:"
    )


def test_lines_of_both_layouts(tmp_path: Path) -> None:
    odd = "a\u2028b\x0cc"  # other line separators, which JSON allows inside a text
    path = lines(tmp_path / "train.jsonl", {"question": odd, "answer": "é"}, ALPACA[2])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes() + b"\r\n\n")
    pairs = read_pairs(path)
    assert pairs[0] == Pair(f"{odd}\n", "é")
    assert pairs[1].prompt == "### Instruction:\nSay nothing.\n\n### Response:"


DAMAGED = [
    ("train.jsonl", '{"question": "a", "answer": "b"}\n{"question": "a", "answ', "line 2, column 19"),
    ("train.json", '[{"question": "a",\n "answer": "b"},\n {"question": }]', "line 3, column 15"),
    ("train.jsonl", '{"question": "a", "answer": "b"}\n\n["a"]', "an object in line 3"),
    ("train.json", '[{"question": "a", "answer": "b"}, {"prompt": "a"}]', "in entry 2"),
    ("train.jsonl", '{"question": "a", "answer": 4}', "answer as text in line 1"),
    ("train.jsonl", '{"question": "\\ud800", "answer": "4"}', "question as text in line 1"),
    ("train.json", '{"question": "a", "answer": "b"}', "a list"),
    ("train.json", "[]", "none"),
    ("train.jsonl", "\n", "none"),
    ("train.json", "[" * 200_000, "nested too deeply"),
]


@pytest.mark.parametrize(("name", "text", "said"), DAMAGED)
def test_damaged_files_say_where(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError) as caught:
        make_task("instructions", str(tmp_path))
    assert said in str(caught.value)
    assert name in str(caught.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_bytes(b'{"question": "\xff", "answer": ""}')
    with pytest.raises(InputError, match="UTF-8"):
        make_task("instructions", str(tmp_path))


def test_two_training_files_are_refused(tmp_path: Path) -> None:
    for name in ("train.jsonl", "alpaca_data.json"):
        lines(tmp_path / name)
    with pytest.raises(InputError, match=r"train\.jsonl and alpaca_data\.json"):
        make_task("instructions", str(tmp_path))


def test_it_is_found_where_its_files_are(tmp_path: Path) -> None:
    assert locate(TASKS["instructions"], tmp_path) == "not found"
    lines(tmp_path / "test.jsonl", {"question": "a", "answer": "b"})
    assert locate(TASKS["instructions"], tmp_path) == "not found"
    lines(tmp_path / "train.jsonl", {"question": "a", "answer": "b"})
    assert locate(TASKS["instructions"], tmp_path) == f"in {tmp_path}"
