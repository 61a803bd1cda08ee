"""What was requested and not recorded, from the files in which the processes of a run list their hooks."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rldbg.core import Finding, Severity
from rldbg.frameworks.hook_proof import read_proofs
from rldbg.frameworks.record_plan import HOOKS_FOLDER, RECORDING_FOLDER
from rldbg.frameworks.registry import find_framework, recorded_hooks

# Made only by a run that sends weights to an engine.
_ON_OCCASION = frozenset({"weights", "weight_values"})


def recording_findings(run: Path, kinds: Sequence[str] = (), *, among: Sequence[str] = ()) -> list[Finding]:
    """Frameworks that were imported and of which a kind is missing: no function that makes it was called. `kinds` were
    requested by name; the run recorded no others than those in `among`, if given."""
    proofs = read_proofs(run / HOOKS_FOLDER)
    functions: dict[str, dict[str, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    versions: dict[str, str] = {}
    for proof in proofs:
        versions |= proof["versions"]
        for name, hook in proof["hooks"].items():
            records = [kind for kind in hook["records"] if not among or kind in among]
            functions[hook["framework"]][name].append({**hook, "records": records})
    found, titles = [], []
    for framework, by_name in functions.items():
        modules = find_framework(framework).modules
        if any(name.partition(".")[0] in modules for name in by_name):
            title = f"{find_framework(framework).title} {versions.get(modules[0], '')}".strip()
            found += _missing_kinds(title, by_name, kinds)
            if not (run / RECORDING_FOLDER / "gradient").is_dir():
                found += _no_gradients(title, by_name, kinds)
            found += _absent(title, by_name, kinds)
            found += _failed(title, by_name)
            titles.append(title)
    unseen = [kind for kind in kinds if kind != "gradient" and not (run / RECORDING_FOLDER / kind).is_dir()]
    return found + _not_made(", ".join(titles), functions.values(), unseen)


def read_hooks(run: Path) -> list[Mapping[str, Any]]:
    """What each process of a run hooked and called."""
    return read_proofs(run / HOOKS_FOLDER)


def recorded_config(run: Path) -> dict[str, Any]:
    """The framework's own configuration, as the first process that had one noted it."""
    return next((dict(proof["config"]) for proof in read_proofs(run / HOOKS_FOLDER) if proof.get("config")), {})


def _was_called(hooks: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a call of the function was recorded in any process."""
    return any(hook["calls"] > hook["errors"] for hook in hooks)


def _missing_kinds(
    title: str, functions: Mapping[str, Sequence[Mapping[str, Any]]], kinds: Sequence[str]
) -> list[Finding]:
    makers: dict[str, list[str]] = defaultdict(list)
    made = set()
    for name, hooks in functions.items():
        for kind in hooks[0]["records"]:
            makers[kind].append(name)
            if _was_called(hooks):
                made.add(kind)
    found = []
    for kind, names in makers.items():
        if kind in made or kind not in (kinds or makers.keys() - _ON_OCCASION):
            continue
        problems = [f"{name}: {hook['problem']}" for name in names for hook in functions[name][:1] if hook["problem"]]
        problems += [f"{name}: every call failed" for name in names if any(hook["calls"] for hook in functions[name])]
        short = ", ".join(name.rpartition(".")[0].rpartition(".")[2] + "." + name.rpartition(".")[2] for name in names)
        found.append(
            Finding(
                "recording.hook-never-called",
                Severity.WARNING,
                title,
                tuple(problems) or (f"never called: {short}",),
                f"no {kind} records: no function that makes them was called"
                if not problems
                else f"no {kind} records: functions that make them are missing or fail",
                ("see which functions are hooked: rldbg frameworks NAME",),
            )
        )
    return found


def _no_gradients(
    title: str, functions: Mapping[str, Sequence[Mapping[str, Any]]], kinds: Sequence[str]
) -> list[Finding]:
    """Functions that record gradients were called, and the parameters had none."""
    names = [name for name, hooks in functions.items() if "gradient" in hooks[0]["records"] and _was_called(hooks)]
    if not names or (kinds and "gradient" not in kinds):
        return []
    return [
        Finding(
            "recording.no-gradients",
            Severity.WARNING,
            title,
            (f"{', '.join(names)}: called, and no parameter had a gradient that can be read",),
            "no gradient records: DeepSpeed's ZeRO, for one, keeps gradients in buffers of its own",
            ("the norm before clipping is in update_metrics, and param has what each step made of the parameters",),
        )
    ]


def _not_made(
    title: str, frameworks: Iterable[Mapping[str, Sequence[Mapping[str, Any]]]], unseen: Sequence[str]
) -> list[Finding]:
    """Kinds requested by name that no known function records, or whose functions recorded nothing."""
    found = []
    for kind in unseen if title else ():
        makers = {
            name: hooks for by_name in frameworks for name, hooks in by_name.items() if kind in hooks[0]["records"]
        }
        called = [name for name, hooks in makers.items() if _was_called(hooks)]
        if makers and not called:
            continue  # `_missing_kinds` says so
        found.append(
            Finding(
                "recording.kind-not-made",
                Severity.WARNING,
                title,
                (f"called: {', '.join(called)}" if called else "no function that is hooked records this kind",),
                f"no {kind} records: the functions were called, but had no such values in this job"
                if called
                else f"no {kind} records: rldbg has no hook here that makes them",
                ("see what each function records: rldbg frameworks NAME",),
            )
        )
    return found


def _absent(title: str, functions: Mapping[str, Sequence[Mapping[str, Any]]], kinds: Sequence[str]) -> list[Finding]:
    """Functions that the version should have and has not: records may be there and lack what they give."""
    problems = {
        name: (hook["problem"], hook["records"])
        for name, (hook, *_) in functions.items()
        if hook["problem"] and set(hook["records"]).intersection(kinds or set(hook["records"]) - _ON_OCCASION)
    }
    if not problems:
        return []
    lines = [f"{name}: {problem} ({', '.join(records)})" for name, (problem, records) in problems.items()]
    return [
        Finding(
            "recording.hook-missing",
            Severity.WARNING,
            title,
            tuple(lines),
            "functions that are recorded are not in this version: what they give is missing",
            ("see which functions are hooked: rldbg frameworks NAME",),
        )
    ]


def _failed(title: str, functions: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[Finding]:
    return [
        Finding(
            "recording.hook-failed",
            Severity.WARNING,
            f"{title}: {name}",
            (f"{sum(hook['errors'] for hook in hooks)} of {sum(hook['calls'] for hook in hooks)} calls: {first}",),
            "calls of this function could not be recorded; training was not changed",
        )
        for name, hooks in functions.items()
        if (first := next((hook["error"] for hook in hooks if hook.get("error")), ""))
    ]


def nothing_hooked(run: Path) -> Finding | None:
    """A run that was to be recorded by hooks and in which no process imported a framework that has any, nor recorded by
    itself (`rldbg.record_loop`, `rldbg.Recorder`)."""
    # What `rldbg watch` keeps for itself there is no recording.
    if read_proofs(run / HOOKS_FOLDER) or any((run / RECORDING_FOLDER).glob("[!.]*")):
        return None
    names = ", ".join(dict.fromkeys(framework.title for framework, _ in recorded_hooks()))
    return Finding(
        "recording.nothing-hooked",
        Severity.WARNING,
        str(run),
        (f"no process imported a module that is recorded ({names})",),
        "nothing of the run was recorded by hooks",
        ("for a loop of your own call rldbg.record_loop(model, optimizer), or rldbg.watch for metrics alone",),
    )
