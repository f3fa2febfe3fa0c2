# SPDX-License-Identifier: Apache-2.0
"""Drives a headless Chromium over the DevTools protocol, with Python's standard library only.

The browser reads commands from one pipe and writes answers to another. Each message is a JSON text that ends with a zero byte."""
import json, os, select, shutil, subprocess, tempfile, time, base64


def program():
    """Returns the path of a Chromium, or None."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if shutil.which(name):
            return shutil.which(name)
    return None


class Browser:
    """One browser process with a new profile, which close() removes."""

    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="tessera-browser-")
        commands, answers = os.pipe(), os.pipe()

        def inherit():
            # File descriptors that the protocol requires: the browser reads commands from 3 and writes answers to 4.
            os.dup2(commands[0], 103), os.dup2(answers[1], 104)
            os.dup2(103, 3), os.dup2(104, 4)

        self.process = subprocess.Popen([
            program(), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage",
            "--remote-debugging-pipe", "--disable-background-networking", "--user-data-dir=" + self.profile, "about:blank"
        ], preexec_fn=inherit, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(commands[0]), os.close(answers[1])
        self.out, self.into, self.buffer, self.number, self.events = commands[1], answers[0], b"", 0, []

    def read(self, deadline):
        while b"\0" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.into], [], [], left)[0]:
                raise TimeoutError("the browser gives no answer")
            piece = os.read(self.into, 1 << 20)
            if not piece:
                raise EOFError("the browser has ended")
            self.buffer += piece
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, session=None, **parameters):
        self.number += 1
        command = {"id": self.number, "method": method, "params": parameters}
        if session:
            command["sessionId"] = session
        os.write(self.out, json.dumps(command).encode() + b"\0")
        deadline = time.monotonic() + 60
        while True:
            answer = self.read(deadline)
            if answer.get("id") == self.number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self.events.append(answer)

    def wait(self, method, session, seconds=30):
        deadline = time.monotonic() + seconds
        while True:
            for event in self.events:
                if event.get("method") == method and event.get("sessionId") == session:
                    return event
            self.events.append(self.read(deadline))

    def close(self):
        try:
            self.call("Browser.close")
        except (EOFError, BrokenPipeError, TimeoutError):
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)


class Tab:
    """Shows a file or an address in a window of the given size. errors() returns console errors; requests() returns the other URLs that
    were loaded."""

    def __init__(self, browser, path, width, height=900, touch=False, dark=False):
        self.browser, self.url = browser, path
        if not path.startswith("http://"):
            self.url = "file://" + os.path.abspath(path).replace("%", "%25").replace("#", "%23").replace("?", "%3F")
        self.target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=touch)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        if touch:
            self.call("Emulation.setTouchEmulationEnabled", enabled=True)
        self.call("Page.navigate", url=self.url)
        browser.wait("Page.loadEventFired", self.session)

    def call(self, method, **parameters):
        return self.browser.call(method, self.session, **parameters)

    def run(self, script):
        """Returns the value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, (script, answer["exceptionDetails"])
        return answer["result"].get("value")

    def key(self, name, code=0):
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r" if name == "Enter" else name} if kind == "keyDown" and (len(name) == 1 or name == "Enter") else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=name, windowsVirtualKeyCode=code, **text)

    def tap(self, x, y):
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])

    def mine(self, method):
        return [e["params"] for e in self.browser.events if e.get("sessionId") == self.session and e.get("method") == method]

    def errors(self):
        self.run("new Promise(done => setTimeout(done, 50))")
        said = [e["entry"]["text"] for e in self.mine("Log.entryAdded") if e["entry"]["level"] in ("error", "warning")]
        said += [e["exceptionDetails"]["text"] for e in self.mine("Runtime.exceptionThrown")]
        return said + [str(e["args"]) for e in self.mine("Runtime.consoleAPICalled") if e["type"] in ("error", "warning", "assert")]

    def requests(self):
        return [e["request"]["url"] for e in self.mine("Network.requestWillBeSent") if e["request"]["url"] != self.url]

    def picture(self, path, whole=True):
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole, **({"clip": clip} if whole else {}))
        with open(path, "wb") as f:
            f.write(base64.b64decode(shot["data"]))

    def close(self):
        self.browser.call("Target.closeTarget", targetId=self.target)
