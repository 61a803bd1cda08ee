"""`rldbg ui` and a browser for tests: started, and ended again."""

import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
WAIT_MS = 60_000


@contextmanager
def served(*roots):
    """The URL of the page over these folders."""
    command = [sys.executable, "-m", "rldbg", "ui", *map(str, roots), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=\S+", url), url
        yield url
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


@contextmanager
def opened_browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


class Site:
    """A page, what it asked of other hosts, and what it complained about."""

    def __init__(self, browser, url):
        self.page = browser.new_context(viewport={"width": 1300, "height": 850}).new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.base = url.partition("?")[0]
        self.elsewhere = []
        self.complaints = []
        self.page.on("request", lambda request: self._asked(request.url))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda message: message.type == "error" and self.complaints.append(message.text))
        self.page.goto(url)

    def _asked(self, url):
        if not url.startswith((self.base, "data:", "blob:")):
            self.elsewhere.append(url)

    def open(self, path, expected):
        self.page.goto(f"{self.base}#/{path}")
        self.page.wait_for_selector(expected)
        return self.page

    def picture(self, name):
        """Of what is seen now, for README and docs: `make images` names a folder, else it is made and thrown away."""
        image = self.page.screenshot()
        assert image.startswith(b"\x89PNG")
        if folder := os.environ.get("UI_PICTURES"):
            (Path(folder) / f"{name}.png").write_bytes(image)

    def text(self):
        return self.page.inner_text("main")
