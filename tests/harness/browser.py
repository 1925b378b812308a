"""A headless Chromium, spoken to over its DevTools protocol. Found in PATH or named by PRECAD_CHROMIUM.

A driver such as Playwright would bring 50 MB and a browser of its own to every `make setup`. The tests need only six
methods of the protocol over a WebSocket, which aiohttp speaks.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome", "chrome-headless-shell")
PATIENCE_S = 30.0


def find_chromium() -> str | None:
    """The program, if there is one."""
    return os.environ.get("PRECAD_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One tab. Remembers every request and every complaint of the browser's."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._answers = socket, dict[int, asyncio.Future[dict[str, Any]]]()
        self._numbers = itertools.count(1)
        self.session = ""
        self.requests: list[str] = []
        self.complaints: list[str] = []

    async def listen(self) -> None:
        """Takes in what the browser says, until it hangs up."""
        async for message in self._socket:
            event = json.loads(message.data)
            if "id" in event:
                self._answers.pop(event["id"]).set_result(event)
                continue
            match event["method"], event["params"]:
                case "Network.requestWillBeSent", found:
                    self.requests.append(found["request"]["url"])
                case "Runtime.exceptionThrown", found:
                    self.complaints.append(json.dumps(found["exceptionDetails"]))
                case "Runtime.consoleAPICalled", found:
                    self.complaints.append(json.dumps(found["args"]))
                case "Page.javascriptDialogOpening", found:
                    self.complaints.append(found["message"])
                case "Log.entryAdded", found if found["entry"]["source"] != "network":
                    self.complaints.append(found["entry"]["text"])

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command, its result."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        await self._socket.send_json({**message, "sessionId": self.session} if self.session else message)
        found = await asyncio.wait_for(answer, PATIENCE_S)
        assert "error" not in found, found
        result: dict[str, Any] = found["result"]
        return result

    async def goto(self, url: str) -> None:
        """Opens an address and waits until it has loaded."""
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def until(self, condition: str) -> None:
        """Waits until an expression is true; a page that is being replaced has no value."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(AssertionError):
                    if await self.evaluate(condition):
                        return
                await asyncio.sleep(0.05)

    async def look_like(self, width: int, height: int, scheme: str = "light") -> None:
        """The size of the screen and the colours that its user prefers."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def press(self, key: str) -> None:
        """A key without a character, such as End, where the focus is."""
        for kind in ("rawKeyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    async def tap(self, selector: str) -> None:
        """A finger on the middle of an element."""
        found = await self.evaluate(
            f"(() => {{ const node = document.querySelector({selector!r}); node.scrollIntoView({{block: 'center'}});"
            " const box = node.getBoundingClientRect();"
            " return {x: box.left + box.width / 2, y: box.top + box.height / 2}; })()"
        )
        await self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[found])
        await self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    async def screenshot(self) -> bytes:
        """The whole page, PNG."""
        found = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(found["data"])


@contextlib.asynccontextmanager
async def chromium(program: str, folder: Path) -> AsyncIterator[Page]:
    """A browser with one empty page; nothing of it is left afterwards."""
    flags = ["--headless", "--remote-debugging-port=0", f"--user-data-dir={folder}", "--disable-gpu", "--no-first-run"]
    flags += ["--disable-background-networking", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    process = await asyncio.create_subprocess_exec(
        program, *flags, "about:blank", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    try:
        address = await asyncio.wait_for(_devtools(process), PATIENCE_S)
        async with aiohttp.ClientSession() as session, session.ws_connect(address, max_msg_size=0) as socket:
            page = Page(socket)
            listening = asyncio.create_task(page.listen())
            target = await page.call("Target.createTarget", url="about:blank")
            attached = await page.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
            page.session = attached["sessionId"]
            for domain in ("Page", "Network", "Runtime", "Log"):
                await page.call(f"{domain}.enable")
            yield page
            listening.cancel()
    finally:
        process.kill()
        await process.wait()


async def _devtools(process: asyncio.subprocess.Process) -> str:
    assert process.stderr is not None  # it was asked for
    async for line in process.stderr:
        if (found := re.search(r"ws://\S+", line.decode(errors="replace"))) is not None:
            return found[0]
    raise AssertionError("the browser ended before it listened")
