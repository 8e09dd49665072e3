import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from tests.chromium import browser


class Slow(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        time.sleep(1)
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<p>here</p>")

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_an_opened_page_is_never_the_empty_one_before_it(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with browser(f"http://127.0.0.1:{server.server_port}/", tmp_path) as opened:
                assert opened.wait_for("document.readyState === 'complete' && location.pathname")
                assert opened.evaluate("document.body.innerText") == "here"
        finally:
            server.shutdown()
