"""One opened run or recording: what is read of it is kept, and read again when its files have changed."""

import math
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rldbg.core import IncompleteDataError, PrerequisiteError, RldbgError, Run
from rldbg.recording import LocalTree, Recording, TokenText, find_tokenizer
from rldbg.recording import open as open_recording

_LOW = ("clip_low", "clip_ratio_low", "eps_clip", "epsilon", "cliprange", "clip_ratio")
_HIGH = ("clip_high", "clip_ratio_high", "eps_clip_high", "epsilon_high", *_LOW[2:])


if TYPE_CHECKING:
    from rldbg.ui.sample_table import SampleTable

_FRESH_S = 3.0


class OpenedRun:
    """A run of the catalogue. Use `recording` only while holding `lock`: a recording keeps files that it read."""

    def __init__(self, name: str, root: str, path: str, *, layout: str | None, tokenizer: str | None) -> None:
        self.name = name
        self.root = root
        self.path = path
        self.lock = threading.RLock()
        self._layout = layout
        self._tokenizer = tokenizer
        self._recording: Recording | None = None
        self._opened_at = 0.0
        self._table: SampleTable | None = None
        self._text: TokenText | None = None
        self._no_text: RldbgError | None = None

    @property
    def folder(self) -> Path | None:
        """The run's folder, where it has one on this machine."""
        folder = Path(self.path).expanduser()
        is_run = "://" not in self.path and any((folder / name).is_file() for name in ("run.json", "broker.json"))
        return folder if is_run else None

    def run_folder(self, needed: str) -> Path:
        """The run's folder, for what a recording alone does not have."""
        if self.folder is None:
            raise IncompleteDataError(
                f"{self.path} is a recording, not a run: it has no {needed}", "open the folder of a run"
            )
        return self.folder

    def reopened(self) -> Recording:
        """The recording as it is now, by a reader of its own: for work that takes long."""
        recording = open_recording(self.path, self._layout)
        self._confine(recording)
        return recording

    @property
    def recording(self) -> Recording:
        """The recording, listed again when the last look is some seconds old."""
        with self.lock:
            if self._recording is None or time.monotonic() - self._opened_at > _FRESH_S:
                now = self.reopened()
                if self._recording is None or now.listing.entries != self._recording.listing.entries:
                    self._recording, self._no_text = now, None
                self._opened_at = time.monotonic()
            return self._recording

    def is_unrecorded(self) -> bool:
        """A run that was started without --record: its processes, timeline and logs are all there is."""
        folder = self.folder
        try:
            return folder is not None and not (folder / "recording").exists() and not self.facts().get("recording")
        except RldbgError:
            return False

    def facts(self) -> dict[str, Any]:
        """run.json; empty where there is none."""
        return Run(self.folder).read() if self.folder else {}

    def clip_limits(self) -> tuple[float, float] | None:
        """The loss's limits of the ratio, below and above 1; None where they are not known."""
        return clip_limits(self.recording.run_facts().get("config"))

    def state_stamp(self) -> object:
        """Changes when the run begins, ends, or has written phases since."""
        assert self.folder is not None
        files = sorted((self.folder / "profiling" / "phases").glob("*.jsonl"))
        return tuple(file.stat().st_size for file in files), self.facts().get("ended_at")

    def table(self) -> "SampleTable":
        """The samples as columns, with those that came since."""
        from rldbg.ui.sample_table import SampleTable

        with self.lock:
            if self._table is None:
                self._table = SampleTable()
            return self._table

    def text(self) -> TokenText:
        """The tokenizer's text of tokens; an error with the reason when there is none."""
        with self.lock:
            if self._no_text is not None:
                raise self._no_text
            if self._text is None:
                try:
                    self._text = TokenText(self.tokenizer_file())
                except RldbgError as error:
                    self._no_text = error
                    raise
            return self._text

    def texts_of(self, tokens: list[int]) -> tuple[list[str] | None, str]:
        """The text of each token, or None and why there is none."""
        try:
            return self.text().of(tokens), ""
        except (PrerequisiteError, IncompleteDataError) as error:
            return None, f"{error.message} ({error.hint})"

    def tokenizer_file(self) -> Path:
        """The tokenizer given or recorded; an error with the reason when there is none that may be read."""
        if self._tokenizer is not None:
            given = Path(self._tokenizer).expanduser()
            return given / "tokenizer.json" if given.is_dir() else given
        found = find_tokenizer(self.recording)
        if found is None:
            raise PrerequisiteError("no tokenizer is recorded", "start with --tokenizer PATH to see text")
        if not self._is_inside(found) and not _is_cached_model(found):
            raise PrerequisiteError(
                f"the tokenizer {found} is outside the opened folders", f"start with --tokenizer {found} to see text"
            )
        return found

    def _confine(self, recording: Recording) -> None:
        """Refuses a recording outside the opened folders, and later each file of it that a link takes outside."""
        tree = recording.tree
        if not isinstance(tree, LocalTree):
            return
        if not self._is_inside(tree.root):
            raise IncompleteDataError(
                f"the recording of {self.path} is in {tree.root}, outside the opened folders", f"rldbg ui {tree.root}"
            )
        recording.tree = ConfinedTree(tree.root, tree.only, self._root())

    def _is_inside(self, place: Path) -> bool:
        return place.resolve().is_relative_to(self._root())

    def _root(self) -> Path:
        root = Path(self.root).expanduser().resolve()
        return root if root.is_dir() else root.parent


@dataclass(frozen=True)
class ConfinedTree(LocalTree):
    """A folder whose files are read only where they lie inside what was opened."""

    inside: Path = Path("/")

    def local(self, name: str) -> Path:
        place = super().local(name)
        if not place.resolve().is_relative_to(self.inside):
            raise IncompleteDataError(f"{place} is a link that leads outside the opened folders", "copy the file there")
        return place


def _is_cached_model(file: Path) -> bool:
    """Whether a tokenizer is one that the Hugging Face cache holds."""
    try:
        from huggingface_hub.constants import HF_HUB_CACHE
    except ImportError:
        return False
    return file.resolve().is_relative_to(Path(HF_HUB_CACHE).resolve())


def clip_limits(config: Any) -> tuple[float, float] | None:
    """How far the ratio may go below and above 1; None where the configuration does not say."""
    numbers = dict(_numbers_of(config))
    low, high = (next((numbers[key] for key in keys if key in numbers), None) for keys in (_LOW, _HIGH))
    return None if low is None or high is None else (low, high)


def _numbers_of(config: Any) -> Iterator[tuple[str, float]]:
    for key, value in config.items() if isinstance(config, Mapping) else ():
        if isinstance(value, Mapping):
            yield from _numbers_of(value)
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and 0 < value < 10:
            yield str(key), float(value)
