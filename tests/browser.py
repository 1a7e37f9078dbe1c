"""Headless Chromium, spoken to in its own debugging protocol through Tornado's WebSocket."""

import asyncio
import json
import re
import shutil
import subprocess
import tempfile

from tornado.websocket import websocket_connect

_PATIENCE = 600  # for a browser that hangs, not for one on a busy machine
_KEYS = {"Tab": 9, "Enter": 13, " ": 32, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39}


class Browser:
    """One page; what it logs and requests is collected."""

    def __init__(self, binary):
        self._profile = tempfile.mkdtemp()
        self._process = subprocess.Popen(
            [
                binary,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--remote-debugging-port=0",
                f"--user-data-dir={self._profile}",
                "about:blank",
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        self._loop = asyncio.new_event_loop()
        self._count = 0
        self.complaints, self.requests = [], []

    def __enter__(self):
        for line in self._process.stderr:
            if match := re.search(r"listening on (ws://\S+)", line):
                break
        else:
            raise RuntimeError("Chromium did not start")
        self._socket = self._wait(lambda: websocket_connect(match[1], max_message_size=1 << 28))
        self._session = None
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        attached = self._send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self._send(f"{domain}.enable")
        return self

    def __exit__(self, *_):
        self._socket.close()
        self._process.kill()
        self._process.wait()
        self._process.stderr.close()
        while self._wait(self._socket.read_message) is not None:
            pass  # until the connection is closed at this end too
        self._loop.close()
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, address):
        self._loaded = False
        self._send("Page.navigate", url=address)
        while not self._loaded:
            self._hear()
        self.run("new Promise(done => setTimeout(done))")  # what the page itself put off

    def resize(self, width):
        self._send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=800,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def prefer(self, **features):
        """What the reader has asked the system for: ``prefers_color_scheme="dark"``."""
        chosen = [{"name": name.replace("_", "-"), "value": v} for name, v in features.items()]
        self._send("Emulation.setEmulatedMedia", features=chosen)

    def press(self, key):
        """A key, by its name in JavaScript's events."""
        about = {"key": key, "code": {" ": "Space"}.get(key, key)}
        about["windowsVirtualKeyCode"] = _KEYS[key]
        text = {" ": " ", "Enter": "\r"}.get(key)
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        self._send("Input.dispatchKeyEvent", **down, **about)
        self._send("Input.dispatchKeyEvent", type="keyUp", **about)

    def mouse(self, event, point):
        """The left button at a point: ``"mousePressed"``, ``"mouseMoved"``, ``"mouseReleased"``."""
        held = {"button": "left", "buttons": 1, "clickCount": 1}
        self._send("Input.dispatchMouseEvent", type=event, x=point[0], y=point[1], **held)

    def click(self, selector):
        """The left button on the middle of an element."""
        box = (
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({ block: 'center', behavior: 'instant' });"
            "const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })()"
        )
        x, y, width, height = self.run(box)
        for event in ("mousePressed", "mouseReleased"):
            self.mouse(event, (x + width / 2, y + height / 2))

    def run(self, expression):
        """The value of a JavaScript expression."""
        answer = self._send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def fill(self, **numbers):
        for name, value in numbers.items():
            self.run(
                f"(() => {{ const i = document.querySelector('input[name={name}]');"
                f"i.value = {value!r}; i.dispatchEvent(new Event('input')); }})()"
            )

    def shown(self, name):
        return float(self.run(f"document.querySelector('output[name={name}]').dataset.value"))

    def _send(self, method, **params):
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._wait(lambda: self._socket.write_message(json.dumps(message)))
        while True:
            answer = self._hear()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]

    def _hear(self):
        message = json.loads(self._wait(self._socket.read_message))
        match message.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Runtime.exceptionThrown" | "Runtime.consoleAPICalled" | "Log.entryAdded":
                self.complaints.append(message["params"])
            case "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                if not url.startswith(("file:", "data:", "about:", "blob:")):
                    self.requests.append(url)
        return message

    def _wait(self, begin):
        async def within():
            return await asyncio.wait_for(begin(), _PATIENCE)

        return self._loop.run_until_complete(within())
