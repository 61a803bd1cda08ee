"""`rldbg ui` in a real browser: how soon a large recording is seen, and whether it scrolls.

    python benchmarks/bench_ui.py [--quick]

Goals: first rows of 100,000 trajectories within 2 s; a sample of 32,768 tokens within 1 s; no frame over 100 ms while
either scrolls; the server below 500 MB with 5 clients. Times are of the page, from navigation to what is drawn.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import psutil

import rldbg

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
GOALS = {
    "table_s": ("first rows of the table", 2.0, "s"),
    "table_frame_ms": ("longest frame, table", 100.0, "ms"),
    "tokens_s": ("first tokens of a long sample", 1.0, "s"),
    "tokens_frame_ms": ("longest frame, tokens", 100.0, "ms"),
    "server_mb": ("server with 5 clients", 500.0, "MB"),
}
# Scrolls to the end in 40 steps and gives the longest time between two frames.
SCROLL = """(selector) => new Promise((done) => {
  const box = document.querySelector(selector); let last = performance.now(), longest = 0, step = 0;
  const frame = (now) => {
    if (step > 1) longest = Math.max(longest, now - last);
    last = now; step += 1; box.scrollTop += box.scrollHeight / 40;
    if (step < 42) requestAnimationFrame(frame); else done(longest);
  };
  requestAnimationFrame(frame);
})"""


def write_trajectories(folder, steps, rows):
    draw = np.random.default_rng(0)
    recorder = rldbg.Recorder(folder)
    for step in range(steps):
        lengths = draw.integers(40, 90, rows)
        tokens = [draw.integers(0, 50_000, length) for length in lengths]
        masks = [(np.arange(length) > 20).astype(np.int64) for length in lengths]
        recorder.record(
            "trajectory", step=step, samples=[(f"g{row // 8}", row % 8) for row in range(rows)], tokens=tokens,
            loss_mask=masks, logprobs=[-draw.random(length) for length in lengths], reward=draw.random(rows),
        )  # fmt: skip
    recorder.close()


def write_long_sample(folder, count):
    draw = np.random.default_rng(0)
    recorder = rldbg.Recorder(folder)
    mask = (np.arange(count) > 100).astype(np.int64)
    recorder.record(
        "trajectory", step=0, samples=[("long", 0)], tokens=[draw.integers(0, 50_000, count)], loss_mask=[mask],
        logprobs=[-draw.random(count)], reward=[1.0],
    )  # fmt: skip
    recorder.close()


def seen_after_s(page, url, selector):
    page.goto("about:blank")
    page.goto(url)
    page.wait_for_selector(selector)
    return page.evaluate("() => performance.now() / 1000")


def measured(url, browser, pid):
    base = url.partition("?")[0]
    pages = [browser.new_context(viewport={"width": 1300, "height": 850}).new_page() for _ in range(5)]
    page = pages[0]
    page.goto(url)
    page.wait_for_selector("#runs")
    found = {"table_s": seen_after_s(page, f"{base}#/run/many/samples", ".vrow .vcell")}
    page.wait_for_selector("#matched:not(:has-text('reading'))")
    found["table_frame_ms"] = page.evaluate(SCROLL, ".vtable")
    found["tokens_s"] = seen_after_s(page, f"{base}#/run/long/sample?sample=long%2F0", ".flow .t")
    found["tokens_frame_ms"] = page.evaluate(SCROLL, "main")
    for other in pages[1:]:
        other.goto(f"{base}#/run/many/samples")
        other.wait_for_selector(".vrow .vcell")
    found["server_mb"] = psutil.Process(pid).memory_info().rss / 1e6
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the smallest sizes, to see that it runs; no goal decides")
    options = parser.parse_args()
    if CHROMIUM is None:
        for title, _, _ in GOALS.values():
            print(f"{title:32} not measured: no chromium (apt-get install chromium)")
        return 0 if options.quick else 1
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        many, long = Path(folder) / "many", Path(folder) / "long"
        write_trajectories(many, *((2, 64) if options.quick else (100, 1000)))
        write_long_sample(long, 2048 if options.quick else 32_768)
        command = [sys.executable, "-m", "rldbg", "ui", str(many), str(long), "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            url = server.stdout.readline().strip()
            arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
            try:
                # Chromium makes a socket under TMPDIR, whose path the system limits to 107 characters.
                browser = playwright.chromium.launch(
                    executable_path=CHROMIUM, args=arguments, env=os.environ | {"TMPDIR": "/tmp"}
                )
                found = measured(url, browser, server.pid)
                browser.close()
            finally:
                server.terminate()
    for name, (title, goal, unit) in GOALS.items():
        print(f"{title:32} {found[name]:8.2f} {unit:3} goal {goal:g}  {'ok' if found[name] < goal else 'FALLS SHORT'}")
    return 0 if options.quick or all(found[name] < goal for name, (_, goal, _) in GOALS.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
