"""Tests of the built site in a browser: on phones, in search, and in dark mode.

``make site`` runs them. Without Chromium and its driver (Debian: ``apt install chromium-driver``)
only the tests of links and content run.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

SITE = Path(os.environ.get("SITE", "site")).resolve()
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
DESK = {"width": 1280, "height": 900, "deviceScaleFactor": 1, "mobile": False}
BETAINC = "docs/operators/special.betainc.html"  # with curves in several colors

if "SITE" not in os.environ:
    pytest.skip("`make site` builds the site and runs these tests", allow_module_level=True)

PAGES = sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html"))


class Parts(HTMLParser):
    """The ids and the links of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self.feed((SITE / page).read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.add(value)
            elif name in ("href", "src") and value:
                self.links.add(value)


def test_plots() -> None:
    """Elementwise operators have plots, and executed pages have outputs."""
    ops = json.loads(files("mlxops").joinpath("ops.json").read_text(encoding="utf-8"))["operators"]
    for op in ops:
        if "internal" not in op["tags"]:
            name = ".".join(filter(None, (op["module"], op["python_name"])))
            text = (SITE / "docs" / "operators" / f"{name}.html").read_text(encoding="utf-8")
            elementwise = op["elementwise"] or "elementwise" in op["tags"]
            assert text.count('<div class="plots">') == elementwise, name
    for page in ("docs/tutorial.html", "examples/beta_binomial.html"):
        text = (SITE / page).read_text(encoding="utf-8")
        assert text.count('class="cell_output') > 3 and '.png"' in text


@functools.cache
def parts(page: str) -> Parts:
    """Return the parsed page."""
    return Parts(page)


@pytest.mark.parametrize("page", PAGES)
def test_links(page: str) -> None:
    """Links inside the site lead to existing pages and ids."""
    missing = []
    for link in parts(page).links:
        url = urlsplit(link)
        if url.scheme:
            continue
        target = ((SITE / page).parent / unquote(url.path)).resolve() if url.path else SITE / page
        there = target.is_file()
        if there and url.fragment and target.suffix == ".html":
            there = unquote(url.fragment) in parts(str(target.relative_to(SITE))).ids
        if not there:
            missing.append(link)
    assert not missing


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves the site without a log."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of the served site."""
    handler = functools.partial(Quiet, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A headless browser."""
    from selenium import webdriver

    names = ("google-chrome", "chromium", "chromium-browser")
    binary = next(filter(None, map(shutil.which, names)), None)
    driver = shutil.which("chromedriver")
    if not binary or not driver:
        missing = pytest.fail if "REQUIRE_CHROMIUM" in os.environ else pytest.skip
        missing("needs chromium and chromedriver (Debian: apt install chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield browser
    browser.quit()


@pytest.fixture
def browser(chromium: Any) -> Iterator[Any]:
    """The browser at desktop size; a test fails if the console has warnings afterward."""
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", DESK)
    scheme(chromium, "light")
    yield chromium
    assert [line for line in chromium.get_log("browser") if line["level"] != "INFO"] == []


def scheme(browser: Any, name: str) -> None:
    """Set the system's color scheme, light or dark."""
    features = [{"name": "prefers-color-scheme", "value": name}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


WIDER = """
const inside = [...document.querySelectorAll("html, body, .page, .main, .content")];
const wide = inside.filter(e => e.scrollWidth > e.clientWidth && e.clientWidth);
return wide.map(e => `${e.tagName} ${e.className}: ${e.scrollWidth} > ${e.clientWidth}`);
"""
"""Finds containers that are wider than the screen. Code blocks and tables scroll on their own."""


@pytest.mark.parametrize("page", PAGES)
def test_phone(browser: Any, address: str, page: str) -> None:
    """A page fits the width of a phone, and loads all images, from its own host only."""
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    browser.get(address + page)
    assert browser.execute_script("return window.innerWidth") == 390
    assert browser.execute_script(WIDER) == []
    loaded = "return performance.getEntriesByType('resource').map(e => e.name)"
    assert all(name.startswith(address) for name in browser.execute_script(loaded))
    missing = "return [...document.images].filter(i => i.complete && !i.naturalWidth).length"
    assert browser.execute_script(missing) == 0


@pytest.mark.parametrize(
    ("word", "place"),
    [
        ("digamma", "docs/operators.html"),
        ("MG303", "errors.html"),
        ("native_functions", "docs/torchgen.html"),
    ],
)
def test_search(browser: Any, address: str, word: str, place: str) -> None:
    """The search lists a page that contains the word."""
    found = search(browser, address, word)
    assert any(place in link for link in found), found
    browser.get(next(link for link in found if place in link))
    assert word in browser.find_element("tag name", "article").text


@pytest.mark.parametrize("name", ["digamma", "lgamma", "special.lgamma", "ndtr", "rope", "softcap"])
def test_search_finds_the_operator_first(browser: Any, address: str, name: str) -> None:
    """The first result is the operator's own page; tables of measurements do not precede it."""
    first = search(browser, address, name)[0].partition("#")[0]
    assert first.removesuffix(".html").endswith((f"docs/operators/{name}", f".{name}")), first


def search(browser: Any, address: str, word: str) -> list[str]:
    """Return the addresses of the search results, in order."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get(address)
    browser.find_element(By.CSS_SELECTOR, "input[name=q]").send_keys(word + "\n")
    finished = "return document.querySelector('.search-summary').innerText"
    WebDriverWait(browser, 20).until(lambda b: b.execute_script(finished))
    results = "return [...document.querySelectorAll('#search-results li > a')].map(a => a.href)"
    links: list[str] = browser.execute_script(results)
    return links


CONTRAST = """
const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
const light = color => {
  canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
  const parts = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map(
    v => v / 255 <= 0.04045 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
};
const ground = light(getComputedStyle(document.body).backgroundColor);
return [ground, ...arguments[0].map(([selector, property]) => {
  const ink = light(getComputedStyle(document.querySelector(selector))[property]);
  return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
})];
"""
"""Computes the page's lightness and the contrast of elements' properties (WCAG 2.2)."""


def contrasts(browser: Any) -> tuple[float, float, float]:
    """Return the page's lightness, and the least contrasts of text and of curves in plots."""
    inks = [["article p", "color"], [".plots svg text", "fill"]]
    curves = [[f".plots svg path[style*='{c}']", "stroke"] for c in ("#2f7ed8", "#d9730d")]
    ground, *found = browser.execute_script(CONTRAST, inks + curves)
    return ground, min(found[:2]), min(found[2:])


def test_dark(browser: Any, address: str) -> None:
    """The colors follow the system and the button; text and plots are readable in both schemes."""
    from selenium.webdriver.common.by import By

    scheme(browser, "dark")
    browser.get(address + BETAINC)
    browser.execute_script("localStorage.clear()")
    browser.refresh()
    ground, text, curves = contrasts(browser)
    assert ground < 0.05 and text >= 7 and curves >= 3
    scheme(browser, "light")
    ground, text, curves = contrasts(browser)
    assert ground > 0.9 and text >= 7 and curves >= 3
    for _ in range(3):  # the system's scheme, light, dark
        browser.find_element(By.CSS_SELECTOR, ".content-icon-container .theme-toggle").click()
        theme = browser.execute_script("return document.body.dataset.theme")
        assert (contrasts(browser)[0] < 0.05) == (theme == "dark")
