"""A web server of a folder, whose answers may fail."""

import http.server
import threading
import zlib
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder; `faults` are the codes of the answers to paths, each for some requests.

    `tells` is what it says of the state of a file: its date, a tag that changes with the contents, or nothing.
    """

    faults: ClassVar[dict[str, tuple[int, int]]] = {}
    tells: ClassVar[str] = "date"
    requested: ClassVar[list[str]] = []

    def do_GET(self):
        self.requested.append(self.path)
        code, count = self.faults.get(self.path, (0, 0))
        if count:
            self.faults[self.path] = code, count - 1
            self.send_error(code)
        else:
            super().do_GET()

    def send_header(self, keyword, value):
        if keyword != "Last-Modified" or self.tells == "date":
            super().send_header(keyword, value)
        elif self.tells == "tag":
            super().send_header("ETag", f'"{zlib.crc32(Path(self.translate_path(self.path)).read_bytes())}"')

    def log_message(self, *arguments):
        """Print nothing."""


@pytest.fixture
def server(tmp_path):
    """The address of a web server of the folder `tmp_path`."""
    handler = partial(Handler, directory=str(tmp_path))
    Handler.faults.clear()
    Handler.requested.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
        thread.join()
