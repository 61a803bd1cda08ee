"""The JSON behind the page that compares runs: what `rldbg compare --json` says, and the worst tokens."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rldbg.analysis import Comparison, Stage, Strips, TokenDecoder, compare, noise_beside, strips_of
from rldbg.core import UsageError
from rldbg.recording import Recording
from rldbg.reports.json_text import to_json
from rldbg.ui.jobs import Jobs
from rldbg.ui.opened_run import OpenedRun

STATIC = Path(__file__).parent / "static"
# What one comparison in one file needs of the page.
_SCRIPTS = ("dom.js", "charts.js", "runs.js", "tokens.js", "compare.js", "alone.js")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
_BINS = 40
_MAX_RUNS = 4
# Numbers of a hypothesis that are drawn.
_RECOMPUTED = 400


def compare_page(runs: Sequence[OpenedRun], jobs: Jobs) -> dict[str, Any]:
    """The first run against each of the others."""
    if not 2 <= len(runs) <= _MAX_RUNS:
        raise UsageError(f"choose 2 to {_MAX_RUNS} runs to compare", "mark them in the list of runs")
    stamp = tuple(len(run.recording.listing.entries) for run in runs)
    return jobs.ask(("compare", *(run.name for run in runs)), stamp, lambda: compared(runs))


def compared(runs: Sequence[OpenedRun]) -> dict[str, Any]:
    base = runs[0].reopened()
    repetitions = noise_beside(base)
    pairs = []
    for run in runs[1:]:
        other = run.reopened()
        result = compare(base, other, repetitions=repetitions)
        pairs.append({"a_name": runs[0].name, "b_name": run.name} | comparison_document(base, other, result))
    return _answer(pairs)


def comparison_page(
    base: Recording, others: Sequence[tuple[Recording, Comparison]], *, decode: TokenDecoder | None = None
) -> str:
    """One self-contained document: A against each of the others. `decode` turns a token id into text."""
    names = [{"a_name": result.titles[0], "b_name": result.titles[1]} for _, result in others]
    pairs = [
        name | comparison_document(base, other, result, decode)
        for name, (other, result) in zip(names, others, strict=True)
    ]
    # No text can end the script element that holds it.
    answer = to_json(_answer(pairs)).replace("<", "\\u003c")
    scripts = "\n".join((STATIC / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<title>rldbg compare</title>
<style>{(STATIC / "style.css").read_text(encoding="utf-8")}</style>
</head>
<body>
<main id="main"></main>
<div id="toast" role="status"></div>
<noscript>This page needs JavaScript; it loads nothing from other hosts.</noscript>
<script type="application/json" id="answer">{answer}</script>
<script>{scripts}</script>
</body>
</html>
"""


def _answer(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"stages": [stage.value for stage in Stage], "pairs": pairs}


def comparison_document(
    base: Recording, other: Recording, result: Comparison, decode: TokenDecoder | None = None
) -> dict[str, Any]:
    """The result as `--json` gives it, with distributions of differences, the configuration, and the worst tokens."""
    first = result.first_difference
    strips = strips_of(base, other, first.step, decode, shift=result.shift) if first is not None else None
    distributions = {f"{field.kind}.{field.field}": field.distribution() for field in result.fields if not field.equal}
    return result.to_dict() | {
        "distributions": distributions,
        "strips": None if strips is None else _strips(strips),
        "step_curve": _step_curve(result),
        "recomputed": {
            item.id + item.explains: item.recomputed.to_dict(_RECOMPUTED)
            for item in (*result.explanations, *result.candidates, *result.nearest)
            if item.recomputed is not None
        },
    }


def _step_curve(result: Comparison) -> dict[str, list[list[float]]]:
    """The largest difference of each field by step, for fields that differ at all."""
    curves: dict[str, dict[int, float]] = {}
    for field in result.fields:
        for (step, _, _), (size, _) in field.cells.items():
            if field.measured.max_abs > 0:
                curve = curves.setdefault(f"{field.kind}.{field.field}", {})
                curve[step] = max(size, curve.get(step, 0.0))
    return {name: [[step, size] for step, size in sorted(curve.items())] for name, curve in curves.items()}


def _strips(strips: Strips) -> dict[str, Any]:
    return {
        "step": strips.step,
        "quantity": strips.quantity,
        "samples": [
            {
                "sample": strip.sample,
                "worst": strip.worst,
                "worst_position": strip.worst_position,
                "left_out": strip.left_out,
                "tokens": [
                    {
                        "position": token.position,
                        "a": token.text_a,
                        "b": token.text_b,
                        "trained": token.is_trained,
                        "gap": token.gap,
                        "values": {name: list(both) for name, both in token.values.items()},
                    }
                    for token in strip.tokens
                ],
            }
            for strip in strips.strips
        ],
        "histogram": _both_sides(strips.values_a, strips.values_b),
    }


def _both_sides(a: np.ndarray, b: np.ndarray) -> dict[str, list[float]] | None:
    both = np.concatenate([a, b])
    both = both[np.isfinite(both)]
    if not both.size:
        return None
    edges = np.histogram_bin_edges(both, _BINS)
    counts = (np.histogram(side[np.isfinite(side)], edges)[0].tolist() for side in (a, b))
    return {"edges": edges.tolist(), **dict(zip(("a", "b"), counts, strict=True))}
