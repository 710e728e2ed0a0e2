"""Everything shown in prose runs: the python blocks of README and docs, and the examples of every docstring."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import sys
from pathlib import Path

import pytest
import torch

import infobatch

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?P<before>[^\n]*\n\s*|^)^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
SKIP = "<!-- skip -->"

pytestmark = [  # what Lightning itself warns of
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning"),
]

# Modules that need more than torch: their examples run where that is installed.
OPTIONAL = {"integrations", "lab", "report", "cli", "selection"}


def blocks(text: str) -> list[tuple[int, str]]:
    """(line, code) of each python block that is not marked to be skipped."""
    found = []
    for match in BLOCK.finditer(text):
        if SKIP not in match["before"]:
            line = text.count("\n", 0, match.start("code"))
            found.append((line, match["code"]))
    return found


def modules() -> list[str]:
    return ["infobatch", *(found.name for found in pkgutil.walk_packages(infobatch.__path__, "infobatch."))]


@pytest.mark.parametrize("page", [page for page in PAGES if page.exists()], ids=lambda page: page.name)
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(1)  # pages draw made-up data, and one draw in many comes near a bound that is warned of
    name = f"page_{page.stem}"
    namespace: dict[str, object] = {"__name__": name}
    for line, code in blocks(page.read_text()):
        # empty lines in front, so that a traceback names the line of the page
        try:
            exec(compile("\n" * line + code, str(page), "exec"), namespace)
        except ModuleNotFoundError as error:
            if page.parent.name == "frameworks" and not (error.name or "").startswith("infobatch"):
                pytest.skip(f"needs {error.name}")
            raise


DIFF = re.compile(r"^```diff\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def side_of_diff(diff: str, sign: str) -> str:
    """Return the code on one side of a diff: the lines with this sign and those with none."""
    return "".join(line[2:] or "\n" for line in diff.splitlines(keepends=True) if line[0] in (sign, " ", "\n"))


@pytest.mark.parametrize("sign", ["-", "+"])
def test_both_sides_of_the_readmes_loop_train(sign: str) -> None:
    diff, _ = DIFF.findall((ROOT / "README.md").read_text())
    torch.manual_seed(0)
    inputs = torch.randn(1000, 10)
    model = torch.nn.Linear(10, 3)
    namespace = {
        "torch": torch,
        "nn": torch.nn,
        "OneCycleLR": torch.optim.lr_scheduler.OneCycleLR,
        "num_epochs": 8,
        "train_data": torch.utils.data.TensorDataset(inputs, inputs[:, :3].argmax(1)),
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    }
    exec(compile(side_of_diff(diff, sign), "README.md", "exec"), namespace)
    right = (model(inputs).argmax(1) == inputs[:, :3].argmax(1)).double().mean().item()
    assert right > 0.8
    rate = namespace["optimizer"].param_groups[0]["lr"]
    assert rate < 1e-3  # the schedule reached its end
    if sign == "+":
        assert 0.2 < namespace["train_data"].history[-1].saved_so_far < 0.5


@pytest.mark.parametrize("sign", ["-", "+"])
def test_both_sides_of_the_readmes_sieve_train(sign: str) -> None:
    _, diff = DIFF.findall((ROOT / "README.md").read_text())
    torch.manual_seed(0)
    inputs = torch.randn(100, 10)
    model, small_model = torch.nn.Linear(10, 3), torch.nn.Linear(10, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()
    namespace = {
        "infobatch": infobatch,
        "criterion": torch.nn.CrossEntropyLoss(reduction="none"),
        "loader": [(x, x[:, :3].argmax(1)) for x in inputs.split(20)],
        "model": model,
        "small_model": small_model,
        "num_epochs": 1,
    }
    exec(compile(side_of_diff(diff, sign), "README.md", "exec"), namespace)
    namespace["loss"].backward()
    optimizer.step()
    assert not torch.equal(model.weight, before)
    if sign == "+":
        assert namespace["sieve"].summary().batches == 5
        assert len(namespace["inputs"]) == len(namespace["weight"])


def test_a_diff_has_two_sides() -> None:
    diff = "+ new = 1\n- old = 1\n\n  for _ in (1,):\n-     old += 1\n+     new += 1\n"
    assert side_of_diff(diff, "+") == "new = 1\n\nfor _ in (1,):\n    new += 1\n"
    assert side_of_diff(diff, "-") == "old = 1\n\nfor _ in (1,):\n    old += 1\n"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) <= 1000


@pytest.mark.parametrize("name", modules())
def test_examples_of_docstrings_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if name.endswith("__main__"):
        pytest.skip("a script")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if name.split(".")[1] in OPTIONAL and not (error.name or "").startswith("infobatch"):
            pytest.skip(f"needs {error.name}")
        raise
    result = doctest.testmod(module, raise_on_error=False, verbose=False)
    assert result.failed == 0, f"{result.failed} of {result.attempted} examples of {name} failed"


def test_the_page_reader_finds_blocks_and_skips() -> None:
    skipped = "<!-- skip -->\n```python\nboom\n```\n\n```bash\nls\n```\n"
    text = "a\n```python\nx = 1\n```\n\n" + skipped + "```python\ny = x + 1\n```\n"
    assert [code for _, code in blocks(text)] == ["x = 1\n", "y = x + 1\n"]
    assert [code for _, code in blocks("```python\nfirst = 1\n```\n")] == ["first = 1\n"]
    assert [code for _, code in blocks("<!-- skip -->\n\n```python\nboom\n```\n")] == []
    assert blocks("no code at all") == []
    line, _ = blocks(text)[0]
    assert text.splitlines()[line] == "x = 1"


def test_the_core_has_examples() -> None:
    """A reader finds one where it counts."""
    for name in (
        "infobatch",
        "infobatch.dataset",
        "infobatch.paper",
        "infobatch.methods",
        "infobatch.schedule.pace",
        "infobatch.reference",
    ):
        finder = doctest.DocTestFinder(exclude_empty=True)
        assert any(test.examples for test in finder.find(sys.modules.get(name) or importlib.import_module(name)))


LINK = re.compile(r"\]\(([^)\s]+)\)")
WRITTEN = [*PAGES, *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "recipes/README.md"))]


def anchors(page: Path) -> set[str]:
    """What a link may point to in a page: its headings, as they are shown on the web."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text())
    headings = re.findall(r"(?m)^#+ (.*)$", text)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(page: Path) -> list[str]:
    """The links of a page that lead to no file, or to no heading of one."""
    dead = []
    for link in LINK.findall(page.read_text()):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    return dead


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert dead_links(page) == []


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_that_are_named_exist(page: Path) -> None:
    named = set(re.findall(r"examples/\w+\.py", page.read_text()))
    assert not [name for name in named if not (ROOT / name).exists()]


def test_the_link_reader_finds_dead_links(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A title, with (signs)\n```python\n# no heading\n```\n")
    good = "[a](other.md) [b](other.md#a-title-with-signs) [c](#here)"
    page = tmp_path / "page.md"
    page.write_text(f"# Here\n{good} [d](none.md) [e](other.md#no-heading) [f](#there)\n")
    assert dead_links(page) == ["none.md", "other.md#no-heading", "#there"]
