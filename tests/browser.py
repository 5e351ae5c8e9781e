# SPDX-License-Identifier: GPL-2.0-only
"""Pages in headless Chromium, through its driver (the WebDriver protocol: JSON over HTTP), and what their pixels are."""

import base64
import json
from pathlib import Path
import re
import struct
import subprocess
import tempfile
import urllib.request
import zlib

# Values of Blink's setting preferredColorScheme.
SCHEMES = {"dark": 0, "light": 1}
PATIENCE_S = 120
STARTED = re.compile(r"started successfully on port (\d+)")
# No sandbox: tests may run as root, and the page is our own. A CI machine has no GPU and may have a small /dev/shm.
ARGUMENTS = ["--headless=new", "--no-sandbox", "--no-zygote", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]


class Browser:
    """A browser with one window, until the `with` block ends."""

    def __init__(self, scheme, width=1000, height=900):
        self._profile = tempfile.TemporaryDirectory()
        self._driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        port = next((found[1] for found in map(STARTED.search, self._driver.stdout) if found), None)
        assert port, "chromedriver ended before it was ready"
        self._address = f"http://127.0.0.1:{port}"
        arguments = [*ARGUMENTS, f"--window-size={width},{height}", f"--user-data-dir={self._profile.name}",
                     f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"]
        options = {"browserName": "chrome", "goog:chromeOptions": {"args": arguments}}
        self._session = ""
        session = self._ask("POST", "", {"capabilities": {"alwaysMatch": options}})
        self._session = "/" + session["sessionId"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self._ask("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.wait()
            self._driver.stdout.close()
            self._profile.cleanup()

    def _ask(self, method, path, body=None):
        data = json.dumps(body or {}).encode() if method == "POST" else None
        request = urllib.request.Request(f"{self._address}/session{self._session}{path}", data, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return json.load(answer)["value"]

    def open(self, page: Path):
        """Opens a file, and waits until it is there."""
        self._ask("POST", "/url", {"url": page.resolve().as_uri()})

    def run(self, script):
        """What a JavaScript function body returns."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": []})

    def all(self, css):
        """References to the elements that a selector finds."""
        return [next(iter(found.values())) for found in self._ask("POST", "/elements", {"using": "css selector", "value": css})]

    def picture(self, element=None) -> bytes:
        """PNG of an element, or of the window."""
        path = f"/element/{element}/screenshot" if element else "/screenshot"
        return base64.b64decode(self._ask("GET", path))

    def resize(self, width, height):
        """Makes the window so large."""
        self._ask("POST", "/window/rect", {"width": width, "height": height})


def chunks(png: bytes):
    """Kind and content of each part of a PNG."""
    at = 8
    while at < len(png):
        length, kind = struct.unpack_from(">I4s", png, at)
        yield kind, png[at + 8:at + 8 + length]
        at += 12 + length


def pixels(png: bytes):
    """Rows of (red, green, blue) of a PNG with 8 bits a channel, with or without alpha, as browsers write them."""
    parts = list(chunks(png))
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", parts[0][1])
    assert depth == 8 and colour in (2, 6) and not interlaced, (depth, colour, interlaced)
    step = 3 if colour == 2 else 4
    data = zlib.decompress(b"".join(content for kind, content in parts if kind == b"IDAT"))
    above, rows = bytearray(width * step), []
    for row in range(height):
        start = row * (width * step + 1)
        line = bytearray(data[start + 1:start + 1 + width * step])
        unfilter(data[start], line, above, step)
        rows.append([tuple(line[at:at + 3]) for at in range(0, len(line), step)])
        above = line
    return rows


def unfilter(kind, line, above, step):
    """Turns a row of differences, as PNG stores it, back into values, in place."""
    for at in range(len(line) if kind else 0):
        left = line[at - step] if at >= step else 0
        corner = above[at - step] if at >= step else 0
        guesses = (0, left, above[at], (left + above[at]) // 2)
        guess = guesses[kind] if kind < 4 else nearest(left, above[at], corner)
        line[at] = (line[at] + guess) & 255


def nearest(left, up, corner):
    """Paeth's predictor."""
    plain = left + up - corner
    return min((left, up, corner), key=lambda value: abs(plain - value))
