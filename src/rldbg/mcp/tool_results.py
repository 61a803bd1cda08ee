"""An answer sized for a context window: a page of text, where to look next, and citations."""

import re
from dataclasses import dataclass, field
from typing import Any

DEFAULT_CHARACTERS = 6000
MAX_CHARACTERS = 40000
_MAX_CITATIONS = 12
# As findings name a place: "step 4 sample 2+9#1/2 token 7", "step 0, epoch 0, mini-batch 0, rank 0, ...".
_PLACE = re.compile(r"\b(step|rank|micro|sample|token) ([^\s,:;]+)")
_WORDS = ("step", "rank", "micro", "sample", "token")


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The whole result as text, before it is cut into pages."""

    text: str
    citations: list[dict[str, Any]] = field(default_factory=list)
    more: str = ""
    """Which tool to call for details."""

    def page(self, offset: int, limit: int) -> tuple[str, dict[str, Any]]:
        """The text from `offset` on, cut at a line's end, and the facts about it."""
        offset = max(0, offset)
        end = min(len(self.text), offset + max(200, min(limit, MAX_CHARACTERS)))
        if end < len(self.text):
            end = max(self.text.rfind("\n", offset, end) + 1, 0) or end
        shown, rest = self.text[offset:end], len(self.text) - end
        facts: dict[str, Any] = {
            "total_characters": len(self.text),
            "next_offset": end if rest > 0 else None,
            "citations": self.citations[:_MAX_CITATIONS],
        }
        lines = [shown.rstrip("\n")]
        if offset == 0 and self.citations:
            lines += ["", "citations:", *(f"- {citation_text(each)}" for each in facts["citations"])]
            if len(self.citations) > _MAX_CITATIONS:
                lines.append(f"- and {len(self.citations) - _MAX_CITATIONS} more places")
        if rest > 0:
            lines.append(
                f"\n[truncated: characters {offset} to {end} of {len(self.text)}; "
                f"call again with offset={end}, or with a larger limit (at most {MAX_CHARACTERS})]"
            )
        elif offset >= len(self.text) > 0:
            lines.append(f"[nothing is left at offset {offset}: the answer has {len(self.text)} characters]")
        if self.more and rest <= 0:
            lines += ["", f"next: {self.more}"]
        return "\n".join(lines).strip("\n"), facts


def cited(run: str, *texts: str) -> list[dict[str, Any]]:
    """The places that texts of findings name, each once, in their order."""
    places: dict[str, dict[str, Any]] = {}
    for text in texts:
        found = dict(_PLACE.findall(text))
        place: dict[str, Any] = {"run": run}
        for word in _WORDS:
            value = found.get(word)
            if value is not None and (word == "sample" or value.isdigit()):
                place[word] = value if word == "sample" else int(value)
        if len(place) > 1:
            places.setdefault(citation_text(place), place)
    return list(places.values())


def citation_text(place: dict[str, Any]) -> str:
    return ", ".join(f"{word} {place[word]}" for word in ("run", *_WORDS) if place.get(word) is not None)


def only_place(facts: dict[str, Any]) -> dict[str, Any]:
    """The run and place among the facts about a difference."""
    return {word: facts[word] for word in ("run", *_WORDS) if facts.get(word) is not None}
