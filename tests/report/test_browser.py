"""The page in a real browser: how it looks, that it fits a phone, and that nothing in it runs or leaves.

Screenshots are held against those in golden/, which a person has looked at, as means over blocks of pixels, so that
other fonts pass and a missing curve or a wrong colour does not. After a change that is meant, look at the new ones:

    GOLDEN=write python -m pytest tests/report/test_browser.py
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser import Browser, program
from facts import attacked
from PIL import Image

from infobatch import report
from infobatch.report.figures.palette import DARK, LIGHT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(program() is None, reason="needs Chromium or Chrome on the path"),
]

GOLDEN = Path(__file__).parent / "golden"
PHONE, NARROW, DESK = (390, 844), (360, 740), (1280, 900)
SHEET = (6, 200, 160)
"""Drawings in a row, and the size of each."""
BLOCK = 20
"""Pixels a side over which colours are averaged."""
TOLERANCE = {"page": 5.0, "figures": 3.0}
"""Of 255. Other fonts: up to 4 and 2. A page without styles: 50; a drawing without its lines: 5."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    opened = Browser()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, drawn: str) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(drawn, encoding="utf-8")
    return path


def picture(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png)).convert("RGB")


def figures(browser: Browser) -> Image.Image:
    """All drawings of the page on one sheet, and nothing else: their places do not depend on fonts."""
    across, wide, tall = SHEET
    script = f"""(() => {{
        const all = [...document.querySelectorAll('svg.plot')], body = document.body;
        body.replaceChildren(...all);
        Object.assign(body.style, {{display: 'grid', gridTemplateColumns: 'repeat({across}, {wide}px)', margin: 0}});
        all.forEach(one => Object.assign(one.style, {{width: '{wide}px', height: '{tall}px', overflow: 'hidden'}}));
        return all.length;
    }})()"""
    number = browser.ask(script)
    return picture(browser.shot(x=0, y=0, width=wide * across, height=tall * -(-number // across)))


def apart(one: Image.Image, other: Image.Image) -> dict[str, float]:
    """How far two pictures differ, as a page (the mean over blocks) and as a sheet of figures (the worst of them)."""
    if one.size != other.size:
        return {"page": 255.0, "figures": 255.0}
    small = (one.width // BLOCK, one.height // BLOCK)
    a, b = (np.asarray(image.resize(small, Image.Resampling.BOX), float) for image in (one, other))
    blocks = np.abs(a - b).mean(2)
    across, _, tall = SHEET
    rows = np.array_split(blocks, max(1, one.height // tall))
    each = [np.sqrt((part**2).mean()) for row in rows for part in np.array_split(row, across, 1)]
    return {"page": float(blocks.mean()), "figures": float(max(each))}


def golden(name: str) -> Image.Image:
    return Image.open(GOLDEN / f"{name}.png").convert("RGB")


def compare(name: str, seen: Image.Image, tmp_path: Path) -> None:
    if os.environ.get("GOLDEN") == "write":
        GOLDEN.mkdir(exist_ok=True)
        seen.quantize(256, dither=Image.Dither.NONE, kmeans=4).save(GOLDEN / f"{name}.png", optimize=True)
    seen.save(tmp_path / f"{name}.png")
    measure = "figures" if name.startswith("figures") else "page"
    found = apart(seen, golden(name))[measure]
    assert found < TOLERANCE[measure], f"{name} differs by {found:.1f}: see {tmp_path} and {GOLDEN}"


def colour(text: str) -> tuple[int, ...]:
    return tuple(int(text[i : i + 2], 16) for i in (1, 3, 5))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize(("device", "size"), [("phone", PHONE), ("desk", DESK)])
def test_it_looks_as_it_did(
    browser: Browser, page: Path, tmp_path: Path, device: str, size: tuple[int, int], dark: bool
) -> None:
    browser.open(page, *size, dark=dark)
    seen = picture(browser.shot())
    assert seen.size == size
    assert seen.getpixel((2, size[1] // 2)) == colour((DARK if dark else LIGHT)["--page"])
    theme = "dark" if dark else "light"
    compare(f"{device}-{theme}", seen, tmp_path)
    if device == "desk":
        compare(f"figures-{theme}", figures(browser), tmp_path)


def test_screenshots_can_tell(browser: Browser, page: Path) -> None:
    """The measure sees lost lines, a lost style and other colours, and does not mind another font."""

    def changed(script: str, *measures: str) -> list[float]:
        browser.open(page, *DESK)
        browser.ask(f"{script}; 0")
        found = []
        for measure in measures:  # figures come last: they clear the page
            seen = picture(browser.shot()) if measure == "page" else figures(browser)
            known = golden("desk-light" if measure == "page" else "figures-light")
            found.append(apart(seen, known)[measure] / TOLERANCE[measure])
        return found

    font = "document.body.style.fontFamily = 'Liberation Sans, Arial, Helvetica'"
    assert max(changed(font, "page", "figures")) < 1
    lines = "document.querySelectorAll('#pruned path[style*=\"width: 1.9\"]')"
    assert min(changed(f"{lines}.forEach(one => one.remove())", "figures")) > 1
    assert min(changed("document.documentElement.style.setProperty('--line-0', '#c00')", "figures")) > 1
    assert min(changed("document.querySelector('style').remove()", "page")) > 1
    assert min(changed("document.querySelector('.verdicts').remove()", "page")) > 1


@pytest.mark.parametrize("size", [PHONE, NARROW, (820, 1180), DESK])
def test_nothing_sticks_out_sideways(browser: Browser, page: Path, size: tuple[int, int]) -> None:
    browser.open(page, *size)
    assert browser.ask("document.documentElement.scrollWidth") <= size[0]
    script = """[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll') && !e.closest('.tip') &&
        !e.closest('thead') && e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + e.className)"""
    assert browser.ask(script) == []


def test_lines_do_not_run_through_letters(browser: Browser, page: Path) -> None:
    browser.open(page, *DESK)
    around = "(one => [one.paintOrder, one.stroke])(getComputedStyle(document.querySelector('#difference text')))"
    assert browser.ask(around) == ["stroke", rgb(LIGHT["--card"])]


def test_letters_can_be_read_on_a_phone(browser: Browser, page: Path) -> None:
    browser.open(page, *NARROW)
    drawn = """[...document.querySelectorAll('svg.plot')].flatMap(svg => {
        const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
        return [...svg.querySelectorAll('text')].map(text => scale * parseFloat(getComputedStyle(text).fontSize));
    })"""
    assert min(browser.ask(drawn)) >= 10.9
    plain = """[...document.querySelectorAll('p, li, td, th, dd, dt, span, small, figcaption')].map(
        element => parseFloat(getComputedStyle(element).fontSize))"""
    assert min(browser.ask(plain)) >= 11


def test_it_needs_nothing_and_complains_of_nothing(browser: Browser, page: Path) -> None:
    browser.open(page, *DESK)
    asked = [event["request"]["url"] for event in browser.seen("Network.requestWillBeSent")]
    assert [url for url in asked if not url.startswith("data:image/png;base64,")] == [page.resolve().as_uri()]
    for kind in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
        assert browser.seen(kind) == []


ATTACKS = [
    "<script>window.hit=1;alert(1)</script>",
    '"><img src=x onerror="window.hit=1;alert(1)"><a href=\'javascript:alert(1)\'>',
    "</title></style></svg><svg onload='window.hit=1;alert(1)'>",
]


def test_no_name_runs(browser: Browser, tmp_path: Path) -> None:
    """With the page's ban on scripts lifted, so that escaping alone must hold."""
    path = report.write(attacked(ATTACKS, epochs=4, size=100), tmp_path / "attack.html")
    browser.call("Page.setBypassCSP", enabled=True)
    try:
        browser.open(path, *PHONE)
        browser.ask("new Promise(done => setTimeout(done, 100))")
        assert browser.ask("window.hit") is None
        assert browser.seen("Page.javascriptDialogOpening") == []
        assert browser.ask("document.querySelectorAll('script, [onerror], [onload], a:not([download])').length") == 0
        assert browser.ask("document.documentElement.scrollWidth") <= PHONE[0]
    finally:
        browser.call("Page.setBypassCSP", enabled=False)


def test_no_script_runs_even_where_one_is(browser: Browser, page: Path, tmp_path: Path) -> None:
    """The ban itself: a script put into the page by hand does not run."""
    text = page.read_text(encoding="utf-8")
    path = tmp_path / "with.html"
    path.write_text(text.replace("</main>", "<script>window.hit=1</script><img src=x onerror='window.hit=1'></main>"))
    browser.open(path)
    assert browser.ask("window.hit") is None
    assert browser.ask("document.querySelectorAll('script').length") == 1
    assert any("Content Security Policy" in one["entry"]["text"] for one in browser.seen("Log.entryAdded"))


def ground(browser: Browser) -> str:
    return str(browser.ask("getComputedStyle(document.body).backgroundColor"))


def rgb(text: str) -> str:
    return f"rgb({', '.join(map(str, colour(text)))})"


def test_colours_can_be_chosen(browser: Browser, page: Path) -> None:
    light, dark = rgb(LIGHT["--page"]), rgb(DARK["--page"])
    browser.open(page, *DESK)
    assert ground(browser) == light
    for name, expected in (("dark", dark), ("light", light), ("auto", light)):
        box = browser.ask(f"document.getElementById('{name}').parentNode.getBoundingClientRect().toJSON()")
        for kind in ("mousePressed", "mouseReleased"):
            at = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
            browser.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)
        assert ground(browser) == expected
    browser.open(page, *DESK, dark=True)
    assert ground(browser) == dark
    browser.ask("document.getElementById('light').click()")
    assert ground(browser) == light
    browser.open(page, *DESK, anchor="#dark")
    assert ground(browser) == dark


def test_paper_is_light(browser: Browser, page: Path) -> None:
    browser.open(page, *DESK, dark=True)
    scheme = {"name": "prefers-color-scheme", "value": "dark"}
    browser.call("Emulation.setEmulatedMedia", media="print", features=[scheme])
    assert browser.ask("getComputedStyle(document.body).color") == rgb(LIGHT["--ink"])
    assert browser.ask("getComputedStyle(document.querySelector('.theme')).display") == "none"


def test_values_show_under_the_pointer(browser: Browser, page: Path) -> None:
    browser.open(page, *DESK)
    script = """(() => { const e = document.querySelector('#pruned svg.plot');
        e.scrollIntoView({block: 'center', behavior: 'instant'}); return e.getBoundingClientRect().toJSON(); })()"""
    box = browser.ask(script)
    shown = """[...document.querySelectorAll('.tip .says')].filter(
        element => getComputedStyle(element).visibility == 'visible').map(element => element.textContent)"""
    assert browser.ask(shown) == []
    x, y = box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"]
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    found = browser.ask(shown)
    assert len(found) == 1
    assert "epoch 1" in found[0]
    assert "infobatch 6" in found[0]


def test_numbers_behind_a_figure_are_saved(browser: Browser, page: Path, tmp_path: Path) -> None:
    browser.open(page, *DESK)
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    browser.ask("document.querySelector('#pruned figcaption a').click()")
    while True:
        browser.wait("Page.downloadWillBegin")
        if any(event["state"] == "completed" for event in browser.seen("Page.downloadProgress")):
            break
        browser.ask("new Promise(done => setTimeout(done, 20))")
    text = (tmp_path / "pruned.csv").read_text(encoding="utf-8")
    assert text.startswith("method,epoch,samples,std,n\nfull,1,0,0,5\n")
