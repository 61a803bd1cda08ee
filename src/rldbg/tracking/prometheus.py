"""The newest numbers in the text format that Prometheus reads, on an HTTP endpoint of its own."""

import json
import math
import re
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from rldbg.core import UsageError, explained_as

# Families with a label; every other name is a metric of its own, `reward/mean` being rldbg_reward_mean.
_LABELLED = {"check": "check", "mismatch": "cause", "noise": "field"}
_HELP = {
    "rldbg_step": "The newest complete step.",
    "rldbg_check": "Places where an invariant does not hold in the newest step; 0: it holds.",
    "rldbg_mismatch": "Share of the gap between rollout and trainer log probs, per cause.",
    "rldbg_noise": "Largest difference to a repetition of the step, per field.",
    "rldbg_processes": "Processes of the run by state.",
}


def exposition(run: str, step: int | None, numbers: Mapping[str, float], states: Mapping[str, int]) -> str:
    """All samples, those of a family together."""
    families: dict[str, list[str]] = {}

    def add(family: str, value: float, **labels: str) -> None:
        text = ",".join(f'{name}="{_escaped(label)}"' for name, label in {"run": run, **labels}.items())
        families.setdefault(family, []).append(f"{family}{{{text}}} {_number(value)}")

    if step is not None:
        add("rldbg_step", step)
    for name, value in numbers.items():
        family, _, rest = name.partition("/")
        if family in _LABELLED and rest:
            add(f"rldbg_{family}", value, **{_LABELLED[family]: rest})
        else:
            add("rldbg_" + re.sub(r"[^a-zA-Z0-9_]", "_", name), value)
    for state, count in states.items():
        add("rldbg_processes", count, state=state)
    lines = []
    for family, samples in families.items():
        help_text = [f"# HELP {family} {_HELP[family]}"] if family in _HELP else []
        lines += [*help_text, f"# TYPE {family} gauge", *samples]
    return "\n".join(lines) + "\n"


class PrometheusEndpoint:
    """Serves what `text` gives at /metrics, in a thread, until it is closed."""

    def __init__(self, text: Callable[[], str], *, host: str, port: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_known = self.path.partition("?")[0] == "/metrics"
                body = (text() if is_known else "see /metrics\n").encode()
                self.send_response(200 if is_known else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """A line per scrape would fill the terminal."""

        with explained_as(UsageError, OSError, f"cannot listen on {host} port {port}", "choose another port"):
            self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.url = f"http://{host}:{self._server.server_port}/metrics"
        self._thread = threading.Thread(target=self._server.serve_forever, name="rldbg-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def grafana_dashboard() -> dict[str, Any]:
    """A dashboard for Grafana over these metrics."""
    dashboard: dict[str, Any] = json.loads(files("rldbg.tracking").joinpath("grafana.json").read_text("utf-8"))
    return dashboard


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return ("+Inf" if value > 0 else "-Inf") if math.isinf(value) else repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
