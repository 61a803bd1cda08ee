"""NeMo RL: train_data_step<N>.jsonl and val_data_step<N>.jsonl, one sample per line, each value in a list of one."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from rldbg.recording import Ragged, Record, Tree
from rldbg.recording.layouts.base import IDS_FROM, VALIDATION, Entry, Layout, Listing, listing_of, matches
from rldbg.recording.layouts.columns import ids_in_order, numbers, prompt_hashes, ragged, text_group
from rldbg.recording.layouts.lines import count_lines, first_line, json_lines

_FILE = re.compile(r"(?:^|/)(?P<split>train|val)_data_step(?P<step>\d+)\.jsonl$")
_TOKENS = {
    "token_ids": "tokens",
    "token_loss_mask": "loss_mask",
    "generation_logprobs": "logprobs",
    "advantages": "advantages",
}
_PER_TOKEN = frozenset({*_TOKENS, "prev_logprobs"})
# Under dynamic sampling `rewards` are those of everything that was sampled, and these of the rows that were kept.
_KEPT_REWARDS = "filtered_rewards"
_USED = frozenset({*_PER_TOKEN, "rewards", _KEPT_REWARDS, "input_lengths", "idx"})


class NemoRlLayout(Layout):
    name = "nemo_rl"
    looks_for = "train_data_step<N>.jsonl or val_data_step<N>.jsonl"
    files = _FILE

    def survey(self, tree: Tree) -> Listing:
        entries = []
        for fact, found in matches(tree, _FILE):
            step = int(found["step"])
            kinds = [VALIDATION]
            if found["split"] == "train":
                has_old = b'"prev_logprobs"' in first_line(tree, fact.name)
                kinds = ["prepared_trajectories", *(["old_log_probs"] if has_old else [])]
            entries += [Entry(kind, step, 0, 0, 0, 0, fact.name, fact.size) for kind in kinds]
        return listing_of(tree, entries)

    def load(self, tree: Tree, file: str) -> list[dict[str, Any]]:
        rows = json_lines(tree.local(file))
        return [
            {key: _token_row(value) if key in _PER_TOKEN else _unwrapped(value) for key, value in row.items()}
            for row in rows
        ]

    def count_rows(self, tree: Tree, entry: Entry) -> int:
        if f'"{_KEPT_REWARDS}"'.encode() in first_line(tree, entry.file):
            return super().count_rows(tree, entry)
        return count_lines(tree.local(entry.file))

    def record(self, content: Any, entry: Entry) -> Record:
        extra: dict[str, Any] = {IDS_FROM: "prompt and order in the file"}
        reward = "rewards"
        if any(_KEPT_REWARDS in row for row in content):
            reward = _KEPT_REWARDS
            extra["unfiltered_rewards"] = [row.get("rewards") for row in content]
            content = [row for row in content if isinstance(row.get(reward), int | float)]
        lengths = [row.get("input_lengths") for row in content]
        fields = _per_token(content, lengths)
        hashes: tuple[str, ...] = ()
        if "tokens" in fields and "loss_mask" in fields:
            hashes = prompt_hashes(fields["tokens"], fields["loss_mask"])
        samples = ids_in_order(hashes or [text_group(_prompt(row.get("content"))) for row in content])
        if entry.kind == "old_log_probs":
            old = _cut([row.get("prev_logprobs") for row in content], lengths)
            return Record(entry.key, {"old_log_probs": old}, samples, hashes, extra=extra, source=entry.file)
        fields["reward"] = numbers(row.get(reward) for row in content)
        if entry.kind == VALIDATION:
            fields["is_val"] = np.ones(len(content), bool)
        fields["extra_fields"] = [
            {key: value for key, value in row.items() if key not in _USED} | _uncut(row) for row in content
        ]
        return Record(entry.key, fields, samples, hashes, extra=extra, source=entry.file)


def _per_token(rows: Sequence[dict[str, Any]], lengths: Sequence[Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {
        name: _cut([row.get(key) for row in rows], lengths)
        for key, name in _TOKENS.items()
        if any(row.get(key) is not None for row in rows)
    }
    if _is_one_a_sample(fields.get("advantages"), fields.get("tokens")):
        fields["advantages"] = numbers(row.get("advantages") for row in rows)
    return fields


def _is_one_a_sample(values: Ragged | None, tokens: Ragged | None) -> bool:
    if values is None or not (values.lengths == 1).all():
        return False
    return tokens is None or not np.array_equal(values.lengths, tokens.lengths)


def _cut(rows: Sequence[Any], lengths: Sequence[Any]) -> Ragged:
    """Rows without the padding on the right; all of it where a length is missing."""
    return ragged([row[:n] if isinstance(n, int) and row else row for row, n in zip(rows, lengths, strict=True)])


def _uncut(row: dict[str, Any]) -> dict[str, Any]:
    """What cutting the padding off would lose: the pad token and how many there were."""
    tokens, length = row.get("token_ids"), row.get("input_lengths")
    if not isinstance(tokens, list) or not isinstance(length, int) or length >= len(tokens):
        return {}
    return {"pad_token": tokens[length], "padding": len(tokens) - length}


def _token_row(value: Any) -> Any:
    """The numbers of a sample's tokens, out of the list of one sample; a lone number stands for the sample."""
    if isinstance(value, list):
        return value[0] if len(value) == 1 and isinstance(value[0], list) else value
    return value if value is None else [value]


def _unwrapped(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _prompt(content: Any) -> Any:
    """The first message, which is the prompt of a conversation that is logged as a list."""
    return content[0] if isinstance(content, list) and content else content


LAYOUT = NemoRlLayout()
