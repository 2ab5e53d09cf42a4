"""A headless Chromium over its debugging pipe: no port, no socket, no library.

Messages are JSON objects that end in a zero byte: the browser reads them from descriptor 3 and writes them to 4
(`--remote-debugging-pipe`, https://chromedevtools.github.io/devtools-protocol/).
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import selectors
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-extensions", "--disable-background-networking", "--disable-sync", "--disable-component-update",
    "--hide-scrollbars", "--mute-audio", "--no-zygote", "--force-color-profile=srgb",
)  # fmt: skip
SECONDS = 60.0


def find() -> str | None:
    """The browser's path; POPULACE_BROWSER names another."""
    named = os.environ.get("POPULACE_BROWSER")
    return named or next((path for path in map(shutil.which, NAMES) if path), None)


class Browser:
    """One page of a running browser, and everything it reports."""

    def __init__(self, path: str, profile: Path) -> None:
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # Out of the way first: one of the ends may itself be descriptor 3 or 4.
        actions: list[tuple[Any, ...]] = [
            (os.POSIX_SPAWN_DUP2, to_browser, 103),
            (os.POSIX_SPAWN_DUP2, from_browser, 104),
        ]
        actions += [(os.POSIX_SPAWN_DUP2, 103, 3), (os.POSIX_SPAWN_DUP2, 104, 4)]
        actions += [(os.POSIX_SPAWN_CLOSE, 103), (os.POSIX_SPAWN_CLOSE, 104)]
        quiet = str(profile / "log")
        actions += [(os.POSIX_SPAWN_OPEN, 2, quiet, os.O_WRONLY | os.O_CREAT, 0o600)]
        arguments = [path, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = os.posix_spawn(path, arguments, dict(os.environ), file_actions=actions, setsid=True)
        os.close(to_browser)
        os.close(from_browser)
        self._wait = selectors.DefaultSelector()
        self._wait.register(self._in, selectors.EVENT_READ)
        self._left = b""
        self._number = 0
        self._session: str | None = None
        self._context = ""
        self.events: list[dict[str, Any]] = []
        try:
            self._attach()
        except (OSError, RuntimeError):
            self.close()
            raise

    def _attach(self, **where: Any) -> str:
        self._session = None
        target = self.call("Target.createTarget", url="about:blank", **where)["targetId"]
        session: str = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._session = session
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return session

    @contextlib.contextmanager
    def person(self) -> Iterator[str]:
        """A page of somebody else, who shares no storage with anybody; gives the tab's name."""
        before, self._session = self._session, None
        context = self.call("Target.createBrowserContext")["browserContextId"]
        self._context = context
        try:
            yield self.tab()
        finally:
            self._session = None
            self.call("Target.disposeBrowserContext", browserContextId=context)
            self._session = before

    def tab(self) -> str:
        """One more tab of the same person, in front; gives its name."""
        return self._attach(browserContextId=self._context)

    def use(self, tab: str) -> None:
        """Go on in another tab."""
        self._session = tab
        self.call("Page.bringToFront")

    def wait_for(self, script: str, *, seconds: float = 20.0) -> Any:
        """What a script gives as soon as it gives something."""
        until = time.monotonic() + seconds
        while not (found := self.evaluate(script)):
            if time.monotonic() > until:
                raise TimeoutError(f"this did not become true within {seconds:.0f} s: {script}")
            time.sleep(0.03)
        return found

    def press(self, key: str) -> None:
        """Press a key: a letter, Tab, Enter, Space, or an arrow."""
        known = {"Tab": 9, "Enter": 13, "Space": 32, "ArrowDown": 40, "ArrowUp": 38}
        text = {"Enter": "\r", "Space": " "}.get(key, key if len(key) == 1 else "")
        named = {"key": " " if key == "Space" else key, "code": key if key in known else "", "text": text}
        code = known.get(key, 0)
        self.call("Input.dispatchKeyEvent", type="keyDown", windowsVirtualKeyCode=code, **named)
        self.call("Input.dispatchKeyEvent", type="keyUp", windowsVirtualKeyCode=code, **named)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser and wait for its answer; events that come in between are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        for answer in self._messages():
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)
        raise RuntimeError(f"{method}: no answer")

    def _messages(self, seconds: float = SECONDS) -> Iterator[dict[str, Any]]:
        until = time.monotonic() + seconds
        while True:
            while b"\0" in self._left:
                message, _, self._left = self._left.partition(b"\0")
                yield json.loads(message)
            if not self._wait.select(max(0.0, until - time.monotonic())):
                raise TimeoutError(f"the browser did not answer within {seconds:.0f} s")
            part = os.read(self._in, 1 << 20)
            if not part:
                raise RuntimeError("the browser ended")
            self._left += part

    def open(self, address: str, *, width: int, height: int = 900, scheme: str = "light", media: str = "") -> None:
        """Load a page at a width, and wait until it is there."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)
        self.events.clear()
        self.call("Page.navigate", url=address)
        for message in self._messages() if not self._loaded() else ():
            self.events.append(message)
            if self._loaded():
                break

    def _loaded(self) -> bool:
        return any(event.get("method") == "Page.loadEventFired" for event in self.events)

    def evaluate(self, script: str) -> Any:
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            said = found["exceptionDetails"]
            raise RuntimeError(said.get("exception", {}).get("description") or said["text"])
        return found["result"].get("value")

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, exceptions, and requests that failed."""
        found = []
        for event in self.events:
            method, what = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(str(what["exceptionDetails"]["text"]))
            if method == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
                found.append(str(what["args"]))
            if method == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
                found.append(str(what["entry"]["text"]))
            if method == "Network.loadingFailed":
                found.append(str(what["errorText"]))
        return found

    def requests(self) -> list[str]:
        wanted = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [event["params"]["request"]["url"] for event in wanted]

    def picture(self, *, whole: bool = True) -> bytes:
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole, **self._clip(whole))
        return base64.b64decode(found["data"])

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16_000), "scale": 1}}

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def close(self) -> None:
        with contextlib.suppress(OSError, RuntimeError, TimeoutError):
            self._session = None
            self.call("Browser.close")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._process, 0)
        for fd in (self._in, self._out):
            os.close(fd)


@contextlib.contextmanager
def browser(path: str) -> Iterator[Browser]:
    with tempfile.TemporaryDirectory(prefix="browser-", ignore_cleanup_errors=True) as profile:
        running = Browser(path, Path(profile))
        try:
            yield running
        finally:
            running.close()
