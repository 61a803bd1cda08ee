"""The newest numbers in the text format that Prometheus reads, on an HTTP endpoint of its own."""

import math
import re
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
_RUN = '{run=~"$run"}'
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_SOURCES = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}
_RUNS = {
    "name": "run",
    "type": "query",
    "label": "Run",
    "datasource": _DATASOURCE,
    "query": "label_values(rldbg_step, run)",
    "refresh": 2,
    "multi": True,
    "includeAll": True,
}
# Title, kind, unit, and the series by what their legend has beside the run.
_PANELS = (
    ("Step", "stat", "short", {"": f"rldbg_step{_RUN}"}),
    ("Processes", "stat", "short", {"{{state}}": f"rldbg_processes{_RUN}"}),
    ("Checks that fail", "timeseries", "short", {"": f"rldbg_checks_failed{_RUN}"}),
    ("Violations per check", "table", "short", {"{{check}}": f"rldbg_check{_RUN} > 0"}),
    ("Reward", "timeseries", "short", {"mean": f"rldbg_reward_mean{_RUN}", "std": f"rldbg_reward_std{_RUN}"}),
    ("Groups with equal rewards", "timeseries", "percentunit", {"": f"rldbg_groups_zero_std{_RUN}"}),
    ("Rollout against trainer (k3)", "timeseries", "short", {"": f"rldbg_rollout_k3{_RUN}"}),
    ("Causes of the gap", "timeseries", "percentunit", {"{{cause}}": f"rldbg_mismatch{_RUN}"}),
    (
        "Response length",
        "timeseries",
        "short",
        {"mean": f"rldbg_responses_length_mean{_RUN}", "max": f"rldbg_responses_length_max{_RUN}"},
    ),
    ("Truncated responses", "timeseries", "percentunit", {"": f"rldbg_responses_truncated{_RUN}"}),
)


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
    """A dashboard for Grafana over these metrics: two panels per row."""
    return {
        "title": "rldbg",
        "uid": "rldbg-dashboard",
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-6h", "to": "now"},
        "tags": ["rldbg"],
        "templating": {"list": [_SOURCES, _RUNS]},
        "panels": [_panel(number, *panel) for number, panel in enumerate(_PANELS)],
    }


def _panel(number: int, title: str, kind: str, unit: str, series: Mapping[str, str]) -> dict[str, Any]:
    row, column = divmod(number, 2)
    # A table of a range would have a row per scrape.
    instant = {"format": "table", "instant": True} if kind == "table" else {}
    targets = [
        {"refId": chr(ord("A") + place), "expr": expression, "legendFormat": f"{{{{run}}}} {legend}".strip()} | instant
        for place, (legend, expression) in enumerate(series.items())
    ]
    return {
        "id": number + 1,
        "title": title,
        "type": kind,
        "datasource": _DATASOURCE,
        "gridPos": {"h": 8, "w": 12, "x": 12 * column, "y": 8 * row},
        "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
        "targets": targets,
    }


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return ("+Inf" if value > 0 else "-Inf") if math.isinf(value) else repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
