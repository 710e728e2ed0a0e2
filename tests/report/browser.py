"""Chromium without a window, spoken to through a pipe: what the tests of the page need of it and no more."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def program() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


# The pipe's ends must be 3 and 4 in the browser. They go by way of high numbers, since 3 and 4 may be in use.
_PLACES = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 20) for end in sys.argv[1:3]]
for end, place in zip(ends, (3, 4)):
    os.dup2(end, place)
os.execvp(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One tab. ``events`` has everything it reported since the last ``open``."""

    def __init__(self) -> None:
        found = program()
        assert found is not None
        self._folder = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        command = [
            found, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--hide-scrollbars", "--force-color-profile=srgb", "--disable-extensions", "--mute-audio",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            f"--user-data-dir={self._folder.name}", "--remote-debugging-pipe", "about:blank",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", _PLACES, str(to_read), str(to_write), *command],
            pass_fds=(to_read, to_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self._held = b""
        self._number = 0
        self._session = ""
        self.events: list[dict[str, Any]] = []
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    def _attach(self) -> None:
        target = next(one for one in self._targets() if one["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def _targets(self) -> list[dict[str, Any]]:
        for _ in range(100):
            found: list[dict[str, Any]] = self.call("Target.getTargets")["targetInfos"]
            if any(one["type"] == "page" for one in found):
                return found
            time.sleep(0.05)
        raise AssertionError("the browser opened no tab")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = self._send(method, params)
        while True:
            found = self._next(30)
            if found.get("id") == number:
                assert "error" not in found, found
                return dict(found["result"])

    def _send(self, method: str, params: dict[str, Any]) -> int:
        self._number += 1
        sent: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            sent["sessionId"] = self._session
        os.write(self._write, json.dumps(sent).encode() + b"\0")
        return self._number

    def _next(self, patience: float) -> dict[str, Any]:
        end = time.monotonic() + patience
        while b"\0" not in self._held:
            ready = select.select([self._read], [], [], max(0.0, end - time.monotonic()))[0]
            if not ready:
                raise TimeoutError("the browser is silent")
            data = os.read(self._read, 1 << 20)
            assert data, "the browser is gone"
            self._held += data
        first, _, self._held = self._held.partition(b"\0")
        found: dict[str, Any] = json.loads(first)
        if "method" in found:
            self.events.append(found)
            if found["method"] == "Page.javascriptDialogOpening":  # a page held up by a dialog answers nothing else
                self._send("Page.handleJavaScriptDialog", {"accept": True})
        return found

    def open(self, path: Path, width: int = 1280, height: int = 900, *, dark: bool = False, anchor: str = "") -> None:
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="screen", features=[scheme])
        for url in ("about:blank", path.resolve().as_uri() + anchor):
            self.events.clear()
            self.call("Page.navigate", url=url)
            self.wait("Page.loadEventFired")

    def wait(self, method: str, patience: float = 20) -> dict[str, Any]:
        while True:
            for event in self.events:
                if event["method"] == method:
                    return event
            self._next(patience)

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page; the page's own ban on scripts does not bind the debugger."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def shot(self, **clip: float) -> bytes:
        """PNG of what is in view, or of an area of the page."""
        params: dict[str, Any] = {"clip": {**clip, "scale": clip.pop("scale", 1)}} if clip else {}
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=bool(clip), **params)
        return base64.b64decode(found["data"])

    def all_of_it(self) -> bytes:
        wide, high = self.ask("[innerWidth, document.documentElement.scrollHeight]")
        return self.shot(x=0, y=0, width=wide, height=high)

    def seen(self, method: str) -> list[dict[str, Any]]:
        """Events of a kind since the last ``open``."""
        return [event["params"] for event in self.events if event["method"] == method]

    def close(self) -> None:
        self._session = ""
        try:
            self.call("Browser.close")
        except (AssertionError, OSError, TimeoutError):
            self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        os.close(self._write)
        self._folder.cleanup()
