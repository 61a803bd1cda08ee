"""`rldbg ui` in a real browser: how soon a large recording is seen, and whether it scrolls.

    python benchmarks/bench_ui.py [--quick]

Goals: first rows of 100,000 trajectories within 2 s; a sample of 32,768 tokens within 1 s; no frame over 100 ms while
either scrolls; the server below 500 MB with 5 clients on a recording of 50 GB; a page that is open on a live run costs
the training less than can be measured. Times are of the page, from navigation to what is drawn; of several fresh
servers the best counts, because another process takes time and frames away and never adds any. The load is printed.

The 50 GB are gradients in files with holes: every file has a true header and its full length, and takes no disk. The
server is measured while it checks that recording. The live run is a loop of fixed work under `rldbg run`; blocks of
steps with the page open and closed alternate, and its own processor time per step is compared.
"""

import argparse
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
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
    "live_percent": ("training with a page open", 1.0, "%"),
}
# Prints the processor time of each step; between them it looks for nobody.
LOOP = """
import pathlib, time
import numpy as np
a = np.random.default_rng(0).random((200, 200))
out = open("steps", "w", buffering=1)
step = 0
while not pathlib.Path("stop").exists():
    began = time.process_time()
    for _ in range(20):
        a @ a
    print(time.process_time() - began, file=out)
    step += 1
    time.sleep(0.02)
"""
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


def write_large(folder, steps, bytes_per_step):
    """Trajectories, and a gradient per step of which only the header is on disk."""
    recorder = rldbg.Recorder(folder, format="safetensors")
    for step in range(steps):
        recorder.record(
            "trajectory", step=step, samples=[("g", row) for row in range(8)], tokens=[[5, 6, 7]] * 8,
            loss_mask=[[0, 1, 1]] * 8, logprobs=[[0.0, -1.0, -0.5]] * 8, reward=[1.0] * 8,
        )  # fmt: skip
        recorder.record(
            "gradient", step=step, param_name="w", gradient=np.zeros(4, np.float32), shape=[4], dtype="float32",
            norm=0.0, mean=0.0, std=0.0,
        )  # fmt: skip
    recorder.close()
    sizes = {}
    for file in (folder / "gradient").iterdir():
        sizes[f"gradient/{file.name}"] = lengthened(file, bytes_per_step)
    for journal in (folder / "journal").iterdir():
        events = [json.loads(line) for line in journal.read_text().splitlines()]
        for event in events:
            event |= {"size": sizes[event["file"]]} if event.get("file") in sizes else {}
        journal.write_text("".join(json.dumps(event) + "\n" for event in events))
    return sum(sizes.values())


def lengthened(file, size):
    """The file's tensor becomes `size` bytes of zeros, as a hole."""
    (length,) = struct.unpack("<Q", file.read_bytes()[:8])
    header = json.loads(file.read_bytes()[8 : 8 + length])
    facts = json.loads(header["__metadata__"]["rldbg"])
    facts["fields"]["gradient"]["shapes"] = [[size // 4]]
    header["__metadata__"]["rldbg"] = json.dumps(facts)
    header["gradient"] = {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size // 4 * 4]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        out.truncate(8 + len(text) + size // 4 * 4)
    return file.stat().st_size


def live_percent(folder, browser, blocks, steps):
    """By how much the median processor time of a step is larger while a page is open on its run."""
    folder.mkdir()
    (folder / "loop.py").write_text(LOOP)
    times = folder / "steps"
    command = [sys.executable, "-m", "rldbg", "run", "--run", "live", "--", sys.executable, "loop.py"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as job:
        try:
            after(times, steps)
            with served(folder / "live") as (url, _):
                page = browser.new_context().new_page()
                found = {True: [], False: []}
                for block in range(2 * blocks):
                    page.goto(
                        f"{url.partition('?')[0]}?{url.partition('?')[2]}#/run/live/ranks"
                        if block % 2
                        else "about:blank"
                    )
                    if block % 2:
                        page.wait_for_selector("#processes")
                    begin = len(times.read_text().splitlines())
                    found[block % 2 == 1].append(statistics.median(after(times, begin + steps)[begin:]))
                page.context.close()
        finally:
            (folder / "stop").touch()
            job.wait(60)
    ratios = [opened / closed - 1 for opened, closed in zip(found[True], found[False], strict=True)]
    return 100 * statistics.median(ratios)


def after(times, count):
    """The processor times once so many steps are done."""
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        lines = times.read_text().splitlines() if times.exists() else []
        if len(lines) >= count:
            return [float(line) for line in lines[:count]]
        time.sleep(0.2)
    raise SystemExit("the loop of the live run does not get on")


@contextmanager
def served(*roots):
    """The URL of `rldbg ui` over these folders, and its process."""
    command = [sys.executable, "-m", "rldbg", "ui", *map(str, roots), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server.stdout.readline().strip(), server
        finally:
            server.terminate()


def seen_after_s(page, url, selector):
    page.goto("about:blank")
    page.goto(url)
    page.wait_for_selector(selector)
    return page.evaluate("() => performance.now() / 1000")


def viewed(url, browser):
    """The first look at each large view of a server that has read nothing yet."""
    base = url.partition("?")[0]
    page = new_page(browser)
    page.goto(url)
    page.wait_for_selector("#runs")
    found = {"table_s": seen_after_s(page, f"{base}#/run/many/samples", ".vrow .vcell")}
    page.wait_for_selector("#matched:not(:has-text('reading'))")
    found["table_frame_ms"] = page.evaluate(SCROLL, ".vtable")
    found["tokens_s"] = seen_after_s(page, f"{base}#/run/long/sample?sample=long%2F0", ".flow .t")
    found["tokens_frame_ms"] = page.evaluate(SCROLL, "main")
    page.context.close()
    return found


def new_page(browser):
    return browser.new_context(viewport={"width": 1300, "height": 850}).new_page()


def memory_mb(url, browser, pid, watched_s):
    """The largest resident memory of the server while five pages are open and it checks the large recording."""
    paths = ("many/samples", "long/sample?sample=long%2F0", "large/samples", "large", "large/metrics")
    for path in paths:
        page = new_page(browser)
        page.goto(url)
        page.goto(f"{url.partition('?')[0]}#/run/{path}")
        page.wait_for_selector(".vrow .vcell, .flow .t, #kinds, h1")
    largest, end = 0, time.monotonic() + watched_s
    while time.monotonic() < end:
        largest = max(largest, psutil.Process(pid).memory_info().rss)
        time.sleep(0.2)
    return largest / 1e6


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
        many, long, large = (Path(folder) / name for name in ("many", "long", "large"))
        write_trajectories(many, *((2, 64) if options.quick else (100, 1000)))
        write_long_sample(long, 2048 if options.quick else 32_768)
        size = write_large(large, *((2, 1 << 20) if options.quick else (100, 1 << 29)))
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        # Chromium makes a socket under TMPDIR, whose path the system limits to 107 characters.
        environment = os.environ | {"TMPDIR": "/tmp"}
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments, env=environment)
        try:
            looks = []
            for _ in range(1 if options.quick else 3):
                with served(many, long) as (url, _server):
                    looks.append(viewed(url, browser))
            found = {name: min(look[name] for look in looks) for name in looks[0]}
            load = os.getloadavg()[0]
            with served(many, long, large) as (url, server):
                found["server_mb"] = memory_mb(url, browser, server.pid, 1 if options.quick else 30)
            found["live_percent"] = live_percent(Path(folder) / "job", browser, *((1, 3) if options.quick else (8, 40)))
        finally:
            browser.close()
    print(f"large recording: {size / 1e9:.1f} GB; best of {len(looks)}; load {load:.1f} on {os.cpu_count()} cores")
    for name, (title, goal, unit) in GOALS.items():
        print(f"{title:32} {found[name]:8.2f} {unit:3} goal {goal:g}  {'ok' if found[name] < goal else 'FALLS SHORT'}")
    return 0 if options.quick or all(found[name] < goal for name, (_, goal, _) in GOALS.items()) else 1


if __name__ == "__main__":
    sys.exit(main())
