"""A headless Chromium for tests that look at pages."""

import contextlib
import shutil

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
FLAGS = (
    *("headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "window-size=1100,1000"),
    *("disable-background-networking", "disable-component-update", "disable-sync", "disable-dev-shm-usage"),
)


@contextlib.contextmanager
def open_browser(**logs: str):
    """A driver of Chromium that keeps its console's log, and others by name; skips the test where there is none."""
    if not (CHROMIUM and DRIVER):
        pytest.skip("needs Chromium and its driver (Debian: apt-get install chromium chromium-driver)")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in FLAGS:
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"} | logs)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()
