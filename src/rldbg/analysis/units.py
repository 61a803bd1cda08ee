"""The work of a comparison in units that any process can run: one kind at one step, the records of one rank of A.

A unit gives the same result wherever it runs, and results are added in one order: so a comparison over many
processes, or over a cluster, is bit-identical to one in this process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from rldbg.analysis.fields import FieldDifference, Place, compare_block
from rldbg.analysis.flat_arrays import give_back
from rldbg.analysis.measured import Measured
from rldbg.analysis.pairing import kinds_to_pair, pair_kind
from rldbg.analysis.resampling import NOTHING_RESAMPLED, Resampled
from rldbg.analysis.results import FieldResult
from rldbg.analysis.samples import StepSamples
from rldbg.analysis.side import Side
from rldbg.analysis.stages import Stage, stage_of
from rldbg.analysis.tolerances import EXACT, Tolerances
from rldbg.analysis.whole import Block, Pairing, Unpaired
from rldbg.core import Finding, IncompleteDataError, Severity

PRESENCE = "presence"
# What is summed over the samples of a micro-batch, or of a step.
_SUMMED = frozenset((Stage.LOSS, Stage.GRADIENT, Stage.METRICS))
_PER_TOKEN = frozenset({"elementwise_loss"})


class Unit(NamedTuple):
    """One kind at one step (what A and what B call it), and the rank of A whose records are meant."""

    step: int
    kinds: tuple[str, str]
    rank: int
    is_first: bool


@dataclass(slots=True)
class UnitResult:
    fields: dict[tuple[str, str], FieldResult] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def merge(self, other: UnitResult) -> None:
        for key, result in other.fields.items():
            if key in self.fields:
                self.fields[key].merge(result)
            else:
                self.fields[key] = result
        self.findings.extend(finding for finding in other.findings if finding not in self.findings)


def units_of(a: Side, b: Side, steps: Sequence[int], kinds: Sequence[str] | None) -> list[Unit]:
    """Every unit, in the order in which results are added."""
    found: list[Unit] = []
    for step in steps:
        for pair in kinds_to_pair(a, b):
            if kinds is not None and pair[0] not in kinds and pair[1] not in kinds:
                continue
            ranks = a.ranks(pair[0], step) or [0]
            found.extend(Unit(step, pair, rank, rank == ranks[0]) for rank in ranks)
    return found


class UnitWorker:
    """Runs units one after another; caches the pairing of the last kind and step, which its ranks share."""

    def __init__(self, a: Side, b: Side, tolerances: Tolerances, resampled: Resampled = NOTHING_RESAMPLED) -> None:
        self._a, self._b, self._tolerances, self._resampled = a, b, tolerances, resampled
        self._samples: tuple[int, StepSamples, StepSamples] | None = None
        self._pairing: tuple[tuple[int, tuple[str, str]], Pairing] | None = None

    def run(self, unit: Unit, update: tuple[int, int] | None = None) -> UnitResult:
        """All records of the unit, or those of one optimizer step (epoch, mini-batch)."""
        result = UnitResult()
        try:
            pairing = self._paired(unit)
        except IncompleteDataError as error:
            result.findings.append(_unreadable(unit, error))
            return result
        for block in pairing.blocks:
            key = block.a.key
            if key.rank == unit.rank and update in (None, (key.epoch, key.mini_batch)):
                for name, difference in self._compared(block, unit.step):
                    _field(result, pairing.kind, name).add(unit.step, block.a.key, difference)
                for record in (block.a, block.b):
                    give_back(record.fields.values())
        if unit.is_first and update is None:
            result.findings.extend(_pairing_findings(pairing))
            _note_presence(result, pairing)
        return result

    def _compared(self, block: Block, step: int) -> Iterator[tuple[str, FieldDifference]]:
        """The fields of a block, without the samples that have other tokens by noise and what follows from them."""
        hidden = 0
        if step in self._resampled.samples and block.rows_a is not None:
            kept = self._resampled.kept(step, block)
            hidden = len(block.rows_a) - int(kept.sum())
            block = replace(block, rows_a=block.rows_a[kept], rows_b=block.rows_b[kept])  # type: ignore[index]
        for name, difference in compare_block(block, self._tolerances):
            if self._resampled.follows(step) and stage_of(block.a.key.kind, name) in _SUMMED and name not in _PER_TOKEN:
                difference = dict(compare_block(block, self._tolerances.forgotten()))[name]
            if hidden and name in ("tokens", "advantages"):
                difference.measured.allowed += hidden
            yield name, difference

    def _paired(self, unit: Unit) -> Pairing:
        if self._pairing is None or self._pairing[0] != unit[:2]:
            self._pairing = None
            if self._samples is None or self._samples[0] != unit.step:
                self._samples = (unit.step, StepSamples(self._a, unit.step), StepSamples(self._b, unit.step))
            _, samples_a, samples_b = self._samples
            pairing = pair_kind(self._a, self._b, unit.kinds, unit.step, samples_a, samples_b)
            self._pairing = (unit[:2], pairing)
        return self._pairing[1]


def _field(result: UnitResult, kind: str, name: str) -> FieldResult:
    return result.fields.setdefault((kind, name), FieldResult(kind, name, stage_of(kind, name)))


def _note_presence(result: UnitResult, pairing: Pairing) -> None:
    """What only one side has is a difference, at its place."""
    for unpaired, is_a in (*((item, True) for item in pairing.only_a), *((item, False) for item in pairing.only_b)):
        place = _presence_place(unpaired, is_a)
        measured = Measured(compared=1, beyond=1)
        difference = FieldDifference(measured, EXACT, place, place)
        _field(result, pairing.kind, PRESENCE).add(pairing.step, unpaired.record.key, difference)


def _presence_place(unpaired: Unpaired, is_a: bool) -> Place:
    key = unpaired.record.key
    a, b = ("present", "absent") if is_a else ("absent", "present")
    name = str(unpaired.record.fields.get("param_name", ""))
    return Place(key.rank, key.micro, unpaired.row, unpaired.sample, None, None, a, b, name)


def _unreadable(unit: Unit, error: IncompleteDataError) -> Finding:
    return Finding(
        "unreadable",
        Severity.ERROR,
        f"{unit.kinds[0]} step {unit.step}",
        (error.message,),
        "a file of this kind and step cannot be read, so none of it was compared",
        (error.hint,) if error.hint else (),
    )


def _pairing_findings(pairing: Pairing) -> Iterator[Finding]:
    where = f"{pairing.kind} step {pairing.step}"
    if pairing.method == "place":
        yield Finding(
            "aligned-by-place",
            Severity.INFO,
            pairing.kind,
            ("rows were matched by (rank, micro-batch, row)",),
            "these records carry neither sample ids nor input_ids",
            ("record with sample ids, so that order and packing cannot matter",),
        )
    if pairing.notes:
        yield Finding("aligned-with-care", Severity.INFO, pairing.kind, tuple(dict.fromkeys(pairing.notes[:5])))
    for side, left in (("A", pairing.only_a), ("B", pairing.only_b)):
        if left:
            shown = tuple(map(str, left[:5])) + ((f"and {len(left) - 5} more",) if len(left) > 5 else ())
            yield Finding(
                "unaligned",
                Severity.ERROR,
                where,
                (f"{len(left)} only in {side}:", *shown),
                "they have no counterpart on the other side, so they could not be compared",
                ("check that both runs used the same data, seed and number of ranks",),
            )
