"""The page at /, in a real browser."""

from pathlib import Path

import pytest

from tests.chromium import Browser
from tests.entry_point.serving.served_model import CLASSES, Served, encoded

ROWS = "[...document.querySelectorAll('#answer tr')].map((row) => row.innerText.split('\\t'))"
PHONE = {"width": 360, "height": 640, "deviceScaleFactor": 2, "mobile": True}


@pytest.fixture
def page(server: Served, chromium: Browser) -> Browser:
    chromium.open(f"http://127.0.0.1:{server.port}/")
    chromium.wait_for("document.querySelector('#drop') !== null")
    return chromium


def test_a_dropped_image_gets_its_classes_and_a_damaged_one_the_reason(
    page: Browser, server: Served, tmp_path: Path
) -> None:
    image, damaged = tmp_path / "photo.png", tmp_path / "damaged.jpg"
    image.write_bytes(encoded("PNG"))
    damaged.write_bytes(b"no image")
    (expected,) = server.invoke(image.read_bytes()).json()["predictions"]
    page.drop(image, 100, 150)
    page.wait_for(f"{ROWS}.length === {len(CLASSES)}")
    rows = page.evaluate(ROWS)
    assert rows[0][0] == expected["class"]
    assert rows[0][1] == f"{100 * expected['probability']:.1f} %"
    assert {row[0] for row in rows} == set(CLASSES)
    assert page.wait_for("document.querySelector('#image').naturalWidth") == 50
    page.drop(damaged, 100, 150)
    reason = page.wait_for("document.querySelector('#error').innerText")
    assert reason.startswith("image 0: is not an image that can be read: not an image")
    assert page.evaluate(ROWS) == []


def test_an_image_can_also_be_chosen_and_nothing_else_is_loaded(
    page: Browser, tmp_path: Path
) -> None:
    image = tmp_path / "photo.jpg"
    image.write_bytes(encoded())
    page.choose("#file", image)
    page.wait_for(f"{ROWS}.length === {len(CLASSES)}")
    loaded = page.evaluate("performance.getEntriesByType('resource').map((e) => e.name)")
    here = page.evaluate("location.origin")
    assert [name for name in loaded if name.startswith("http")] == [f"{here}/invocations"]


def test_on_a_phone_nothing_is_wider_than_the_screen(page: Browser, tmp_path: Path) -> None:
    page.call("Emulation.setDeviceMetricsOverride", **PHONE)
    page.evaluate("location.reload()")
    page.wait_for(f"document.readyState === 'complete' && innerWidth === {PHONE['width']}")
    image = tmp_path / "photo.jpg"
    image.write_bytes(encoded(size=(3000, 1000)))
    page.choose("#file", image)
    page.wait_for(f"{ROWS}.length === {len(CLASSES)}")
    page.wait_for("document.querySelector('#image').naturalWidth")
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
    size = page.evaluate("parseFloat(getComputedStyle(document.body).fontSize)")
    assert size >= 16 and page.evaluate("document.querySelector('#about').innerText")
