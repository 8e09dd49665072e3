"""Pages of other origins: what a browser is told, and what a real one then does."""

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.chromium import Browser
from tests.entry_point.serving.conftest import Serve
from tests.entry_point.serving.served_model import Answer, Served, encoded

HERE, OTHER = "https://example.com", "http://localhost:3000"
ALLOW = "access-control-allow-origin"


def preflight(server: Served, origin: str, path: str = "/invocations") -> Answer:
    """What a browser asks before a page may post an image."""
    headers = {"Access-Control-Request-Method": "POST"}
    headers["Access-Control-Request-Headers"] = "content-type"
    return server.request("OPTIONS", path, headers={"Origin": origin, **headers})


def test_the_refusal_of_another_origin_names_the_setting(server: Served) -> None:
    for origin, allowing in ((OTHER, f"[{OTHER}]"), ("null", "[*]"), ("a,b]", "[*]")):
        answer = preflight(server, origin)
        assert answer.status == 403 and ALLOW not in answer.headers
        line = answer.json()["error"]
        assert line.endswith(f"start the server with serve.origins={allowing}")
    assert ALLOW not in server.invoke(encoded(), Origin=OTHER).headers


def test_pages_of_the_named_origins_may_ask_and_read_errors_too(
    serve: Serve, served_model: Path
) -> None:
    server = serve(f"model_dir={served_model}", f"serve.origins=[{HERE},{OTHER}]")
    for origin in (HERE, OTHER):
        asked = preflight(server, origin)
        assert asked.status == 200 and asked.headers[ALLOW] == origin
        assert "POST" in asked.headers["access-control-allow-methods"]
        assert "content-type" in asked.headers["access-control-allow-headers"]
        for answer in (
            server.invoke(encoded(), Origin=origin),
            server.invoke(b"damaged", Origin=origin),
            server.request("GET", "/ping", headers={"Origin": origin}),
            server.request("GET", "/none", headers={"Origin": origin}),
        ):
            assert (answer.headers[ALLOW], answer.headers["vary"]) == (origin, "Origin")
            assert "access-control-allow-credentials" not in answer.headers
    for other in ("https://example.com.evil", "https://evil", "HTTPS://EXAMPLE.COM", "*"):
        assert preflight(server, other).status == 403
        answer = server.invoke(encoded(), Origin=other)
        assert ALLOW not in answer.headers and answer.headers["vary"] == "Origin"
    assert server.invoke(encoded()).status == 200


def test_a_star_allows_every_page(serve: Serve, served_model: Path) -> None:
    environment = {"SERVE_OVERRIDES": "serve.origins=[*]"}
    server = serve(f"model_dir={served_model}", environment=environment)
    for origin in (HERE, "null"):
        asked, answer = preflight(server, origin), server.invoke(b"damaged", Origin=origin)
        assert (asked.status, answer.status) == (200, 400)
        assert asked.headers[ALLOW] == answer.headers[ALLOW] == "*"


ASKS = """<!doctype html><p id="said"></p><script>
fetch("http://127.0.0.1:PORT/invocations", {method: "POST", body: "no image",
  headers: {"Content-Type": "image/jpeg"}})
  .then((answer) => answer.json(), (error) => ({error: "refused"}))
  .then((answer) => { document.querySelector("#said").textContent = answer.error; });
</script>"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A web site of another origin: its folder, and its URL."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        Thread(target=web.serve_forever, daemon=True).start()
        yield tmp_path, f"http://127.0.0.1:{web.server_port}"
        web.shutdown()


@pytest.mark.parametrize("is_allowed", [True, False])
def test_a_browser_lets_a_page_of_the_named_origin_ask(
    is_allowed: bool, site: tuple[Path, str], serve: Serve, served_model: Path, chromium: Browser
) -> None:
    folder, url = site
    origins = [f"serve.origins={url}"] if is_allowed else []
    server = serve(f"model_dir={served_model}", *origins)
    (folder / "page.html").write_text(ASKS.replace("PORT", str(server.port)))
    chromium.open(f"{url}/page.html")
    said = chromium.wait_for("document.querySelector('#said').textContent")
    assert said.startswith("image 0: is not an image") if is_allowed else said == "refused"
