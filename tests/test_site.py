"""The documentation's site: built strictly, opened page by page in a narrow browser."""

import functools
import http.server
import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urldefrag, urlsplit

import pytest
from chromium import open_browser

ROOT = Path(__file__).parent.parent
NARROW = 400
FACTS = """
const all = (selector, name) => [...document.querySelectorAll(selector)].map(each => each[name]).filter(Boolean);
return {
    title: document.title,
    links: all("a[href]", "href"),
    resources: [...all("img[src], script[src]", "src"), ...all("link[href]", "href")],
    ids: all("[id]", "id"),
    broken: [...document.images].filter(image => !(image.complete && image.naturalWidth > 0)).map(image => image.src),
    code: document.querySelectorAll("pre > code").length,
    buttons: document.querySelectorAll(".md-code__button, .md-clipboard").length,
};
"""
LOADED = """
const done = arguments[arguments.length - 1];
const images = [...document.images].map(image => image.decode().catch(() => null));
Promise.all([...images, document.fonts.ready]).then(() => requestAnimationFrame(() => done(true)));
"""
# What is wider than the page, and not within a box that scrolls by itself
TOO_WIDE = """
const page = document.scrollingElement;
const scrolls = each => ["auto", "scroll", "hidden"].includes(getComputedStyle(each).overflowX);
const within = each => each && each !== document.body && (scrolls(each) || within(each.parentElement));
const wide = [...document.querySelectorAll(".md-content *")].filter(
    each => each.getBoundingClientRect().right > page.clientWidth + 1 && !within(each)
);
return [page.clientWidth, page.scrollWidth, wide.slice(0, 3).map(each => each.outerHTML.slice(0, 80))];
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("site")
    line = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(line, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and "WARNING" not in said, said
    return folder


@pytest.fixture(scope="module")
def address(site):
    """Where the site is served."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser():
    with open_browser(performance="ALL") as driver:
        yield driver


@pytest.fixture(scope="module")
def pages(site, address, browser):
    """What a narrow browser finds on every page, by the page's path."""
    size = {"width": NARROW, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    found = {}
    for path in sorted(site.rglob("*.html")):
        name = path.relative_to(site).as_posix()
        browser.get(f"{address}/{name}")
        browser.execute_async_script(LOADED)
        facts = browser.execute_script(FACTS)
        facts["narrow"] = browser.execute_script(TOO_WIDE)
        facts["errors"] = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
        asked = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
        facts["asked"] = {each["request"]["url"] for each in asked}
        found[name] = facts
    return found


@functools.cache
def status(url):
    """The server's answer to a request."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_every_page_is_there_and_has_a_title(pages):
    expected = {f"{path.stem}.html" for path in (ROOT / "docs").glob("*.md")}
    assert expected <= set(pages) and "404.html" in pages
    titles = [facts["title"] for name, facts in pages.items() if name in expected]
    assert len(set(titles)) == len(expected) and all(titles)


def test_links_lead_to_pages_and_anchors_that_are_there(pages, address):
    broken, seen = [], 0
    for name, facts in pages.items():
        for link in facts["links"] + facts["resources"]:
            url, anchor = urldefrag(link)
            if not url.startswith(address):
                if urlsplit(url).scheme != "https":
                    broken.append((name, link))
                continue
            seen += 1
            path = urlsplit(url).path.strip("/") or "index.html"
            if status(url) != 200 or (anchor and path.endswith(".html") and anchor not in pages[path]["ids"]):
                broken.append((name, link))
    assert not broken and seen > 20 * len(pages)


def test_pictures_are_shown(pages):
    assert not [(name, facts["broken"]) for name, facts in pages.items() if facts["broken"]]


def test_the_console_has_no_error(pages):
    assert not [(name, facts["errors"]) for name, facts in pages.items() if facts["errors"]]


def test_no_other_host_is_asked_for_anything(pages, address):
    def is_elsewhere(url):
        return not url.startswith((address, "data:", "blob:", "about:"))

    for name, facts in pages.items():
        assert f"{address}/{name}" in facts["asked"]
        assert not [url for url in (*facts["asked"], *facts["resources"]) if is_elsewhere(url)]


def test_a_narrow_page_does_not_scroll_sideways(pages):
    """Tables, code and pictures scroll, or shrink, within the page."""
    for name, facts in pages.items():
        there, taken, wide = facts["narrow"]
        assert taken <= there <= NARROW and not wide, name


def test_every_block_of_code_is_one_and_can_be_copied(pages):
    for path in (ROOT / "docs").glob("*.md"):
        facts, fences = pages[f"{path.stem}.html"], path.read_text().count("\n```") // 2
        assert facts["buttons"] == facts["code"] >= fences, path


def test_the_search_finds_what_is_on_a_page(pages, address, browser):
    browser.get(f"{address}/index.html")
    result = """
    const done = arguments[arguments.length - 1];
    const field = document.querySelector("[data-md-component=search-query]");
    field.focus();
    field.value = "rounding grows";
    field.dispatchEvent(new Event("input", {bubbles: true}));
    field.dispatchEvent(new KeyboardEvent("keyup", {bubbles: true}));
    const wait = tries => {
        const found = [...document.querySelectorAll(".md-search-result__link")].map(each => each.href);
        if (found.length || !tries) done(found); else setTimeout(() => wait(tries - 1), 100);
    };
    wait(100);
    """
    assert any("/faq.html" in link for link in browser.execute_async_script(result))
