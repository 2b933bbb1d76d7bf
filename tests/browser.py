"""Pages in headless Chromium, which say by their title what came out."""

from __future__ import annotations

import html
import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest

SECONDS = 120
"""Most seconds until a page has a result."""


def browser() -> str:
    """Return the command of a browser. Skips the test where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if shutil.which(name):
            return name
    pytest.skip("no Chromium (Debian: apt install chromium)")


def result(address: str, begins: str = "result: ") -> str:
    """Return what a page has put into its title after `begins`. Fails where it does not within SECONDS."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
        command = [browser(), *options, f"--user-data-dir={profile}", address]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            return _await_title(Path(profile, "DevToolsActivePort"), begins)
        finally:
            process.kill()
            process.wait()


def _await_title(port: Path, begins: str) -> str:
    titles: list[str] = []
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        time.sleep(0.2)
        if not port.exists() or not (lines := port.read_text().split()):
            continue
        with urllib.request.urlopen(f"http://127.0.0.1:{lines[0]}/json/list", timeout=10) as answer:
            titles = [html.unescape(page["title"]) for page in json.load(answer)]
        for title in titles:
            if title.startswith(begins):
                return title.removeprefix(begins)
    raise AssertionError(f"no page has a result after {SECONDS} s; their titles: {titles}")
