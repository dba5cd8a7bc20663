"""A headless Chromium for tests of the report, driven by the DevTools protocol over two pipes."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
AXE = os.environ.get("DEEPWEATHER_AXE", "")
"""Path of axe.min.js of the npm package axe-core, which looks for barriers, such as text of low contrast."""
PAPER = 718
"""Width of A4 between margins of 10 mm, in CSS pixels."""
PATIENCE = 120
"""Seconds that a command may take: a loaded machine starts a browser slowly."""


class Browser:
    """One process of Chromium; `page` opens a page in it."""

    def __init__(self, folder):
        # The browser reads commands from file 3 and writes answers to file 4, each ending with a zero byte.
        read_commands, self._commands = os.pipe()
        self._answers, write_answers = os.pipe()
        command = [
            CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            "--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-component-update",
            "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank",
        ]  # fmt: skip
        shell = f'exec 3<&{read_commands} 4>&{write_answers}; exec "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", *command], pass_fds=(read_commands, write_answers),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | {"HOME": str(folder)},
        )  # fmt: skip
        os.close(read_commands)
        os.close(write_answers)
        self._numbers, self._rest, self.events = itertools.count(1), b"", []

    def close(self):
        """End the process."""
        os.close(self._commands)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)

    def call(self, method, session=None, **parameters):
        """Return the answer to a command; events that come before it are kept in `events`."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE
        while True:
            found = self._receive(until)
            if found.get("id") == number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']['message']}")
                return found["result"]
            self.events.append(found)

    def wait_for(self, method, session):
        """Return the next event of a kind."""
        until = time.monotonic() + PATIENCE
        while True:
            for number, event in enumerate(self.events):
                if event.get("method") == method and event.get("sessionId") == session:
                    return self.events.pop(number)["params"]
            self.events.append(self._receive(until))

    def page(self, file, width=1280, scheme="light"):
        """Return a page that shows a file."""
        return Page(self, Path(file), width, scheme)

    def _receive(self, until):
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], max(0, until - time.monotonic()))
            if not ready:
                raise TimeoutError(f"the browser did not answer within {PATIENCE} s")
            part = os.read(self._answers, 1 << 16)
            if not part:
                raise RuntimeError("the browser has ended")
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


class Page:
    """A loaded page of one width and colour scheme."""

    def __init__(self, browser, file, width, scheme):
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        self.emulate("screen", scheme)
        self.call("Page.navigate", url=file.resolve().as_uri())
        browser.wait_for("Page.loadEventFired", self._session)

    def call(self, method, **parameters):
        """Return the answer of the page to a command."""
        return self._browser.call(method, self._session, **parameters)

    def emulate(self, media, scheme="light"):
        """Show the page on a screen or in print, light or dark."""
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def run(self, script):
        """Return the value of a JavaScript expression, after its promise."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"].get("description", "exception in the page"))
        return found["result"].get("value")

    def check_look(self, width, alone=True):
        """Check that the page fits, reports no errors, has no barriers (with axe-core) and, `alone`, loads nothing."""
        assert self.run("document.documentElement.scrollWidth") <= width
        assert self.complaints() == []
        assert len(self.requests()) == 1 or not alone
        if Path(AXE).is_file():
            self.run(Path(AXE).read_text() + "; 0")
            passed, violations = self.run("""axe.run().then(found => [
                found.passes.length, found.violations.map(one => [one.id, one.nodes.map(e => e.html).slice(0, 3)])
            ])""")
            assert violations == [], violations
            assert passed > 10

    def complaints(self):
        """Return errors and warnings of the console, and exceptions."""
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        return [event["params"] for event in self._events() if event["method"] in kinds]

    def requests(self):
        """Return the addresses of all requests but those for data inside the page."""
        sent = [e["params"]["request"]["url"] for e in self._events() if e["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith(("data:", "blob:"))]

    def pdf(self):
        """Return the page as it is printed on A4."""
        return base64.b64decode(self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)["data"])

    def _events(self):
        return [event for event in self._browser.events if event.get("sessionId") == self._session]
