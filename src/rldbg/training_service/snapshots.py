"""Named states of models on disk: weights, and the optimizer where asked for. No pickle, readable without rldbg.

    <folder>/<model id>/<weights|sampler>/<name>/weights.safetensors  optimizer.safetensors  snapshot.json

A snapshot gets its name by rename when it is complete. Both protocols' paths name the same snapshots:
`weaver://M/checkpoints/N` and `tinker://M/weights/N`; `weaver://M/sampler/N` and `tinker://M/sampler_weights/N`.
"""

import json
import re
import shutil
import time
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rldbg.training_service.errors import ConflictError, NotFoundError, ServiceRequestError

Purpose = Literal["weights", "sampler"]
Scheme = Literal["weaver", "tinker"]

_SEGMENTS: Mapping[tuple[str, str], Purpose] = {
    ("weaver", "checkpoints"): "weights",
    ("weaver", "sampler"): "sampler",
    ("tinker", "weights"): "weights",
    ("tinker", "sampler_weights"): "sampler",
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_PATH = re.compile(r"(weaver|tinker)://([^/]+)/([^/]+)/([^/]+)")
# Exports without a name are made for one weight sync; older ones than these are removed.
_KEPT_EXPORTS = 8


@dataclass(frozen=True, slots=True)
class ModelSnapshot:
    """One saved state and where it came from."""

    id: str
    model_id: str
    purpose: Purpose
    name: str
    base_model: str
    step: int
    has_optimizer: bool
    created_at: float
    expires_at: float | None
    ephemeral: bool
    kind: str = "weight"
    lora: dict[str, Any] | None = None

    def path(self, scheme: Scheme) -> str:
        segment = next(key[1] for key, value in _SEGMENTS.items() if key[0] == scheme and value == self.purpose)
        return f"{scheme}://{self.model_id}/{segment}/{self.name}"

    @property
    def expired(self) -> bool:
        return self.expires_at is not None and time.time() > self.expires_at


class Snapshots:
    """All snapshots under one folder. Used by the computing thread; reading the list is safe from anywhere."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(
        self,
        snapshot: ModelSnapshot,
        weights: Mapping[str, Any],
        optimizer: Mapping[str, Any] | None,
        *,
        overwrite: bool = False,
    ) -> ModelSnapshot:
        """Writes tensors under the snapshot's name, then drops expired and surplus ones."""
        from safetensors.torch import save_file

        place = self._place(snapshot.model_id, snapshot.purpose, snapshot.name)
        if place.exists() and not overwrite:
            raise ConflictError(f"{snapshot.model_id} already has {snapshot.purpose} named {snapshot.name!r}")
        temporary = place.with_name(f".{snapshot.name}.{uuid.uuid4().hex}")
        temporary.mkdir(parents=True)
        save_file(dict(weights), temporary / "weights.safetensors")
        if optimizer is not None:
            save_file(dict(optimizer), temporary / "optimizer.safetensors")
        (temporary / "snapshot.json").write_text(json.dumps(asdict(snapshot)), encoding="utf-8")
        if place.exists():
            shutil.rmtree(place)
        temporary.rename(place)
        self._clean(snapshot.model_id)
        return snapshot

    def find(self, path: str) -> ModelSnapshot:
        """The snapshot of a path in either scheme."""
        match = _PATH.fullmatch(path)
        purpose = _SEGMENTS.get((match[1], match[3])) if match else None
        if match is None or purpose is None:
            raise ServiceRequestError(
                f"{path!r} is not the path of a snapshot, such as weaver://MODEL/checkpoints/NAME"
            )
        snapshot = self._read(self._place(match[2], purpose, match[4]))
        if snapshot is None or snapshot.expired:
            raise NotFoundError(f"no snapshot {path}" + (": it has expired" if snapshot else ""))
        return snapshot

    def of_model(self, model_id: str) -> list[ModelSnapshot]:
        """A model's snapshots, oldest first."""
        places = (self._folder / model_id).glob("*/[!.]*")
        found = [snapshot for place in places if (snapshot := self._read(place)) is not None]
        return sorted((item for item in found if not item.expired), key=lambda item: item.created_at)

    def remove(self, snapshot: ModelSnapshot) -> None:
        shutil.rmtree(self._place(snapshot.model_id, snapshot.purpose, snapshot.name))

    def weights_file(self, snapshot: ModelSnapshot) -> Path:
        return self._place(snapshot.model_id, snapshot.purpose, snapshot.name) / "weights.safetensors"

    def load(self, snapshot: ModelSnapshot, *, optimizer: bool) -> tuple[dict[str, Any], dict[str, Any] | None]:
        from safetensors.torch import load_file

        file = self.weights_file(snapshot)
        if not file.exists():
            gone = (
                f"{snapshot.path('weaver')} is gone: it expired, or {_KEPT_EXPORTS} newer exports without a name exist"
            )
            raise NotFoundError(gone)
        if not optimizer:
            return load_file(file), None
        if not snapshot.has_optimizer:
            raise ServiceRequestError(f"{snapshot.path('weaver')} was saved without the optimizer")
        return load_file(file), load_file(file.with_name("optimizer.safetensors"))

    def _place(self, model_id: str, purpose: Purpose, name: str) -> Path:
        for part in (model_id, name):
            if not _NAME.fullmatch(part):
                raise ServiceRequestError(
                    f"{part!r} is not a valid name of a snapshot: letters, digits, . _ : - and 128 at most"
                )
        return self._folder / model_id / purpose / name

    def _read(self, place: Path) -> ModelSnapshot | None:
        try:
            return ModelSnapshot(**json.loads((place / "snapshot.json").read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None

    def _clean(self, model_id: str) -> None:
        places = list((self._folder / model_id).glob("*/[!.]*"))
        found = [(snapshot, place) for place in places if (snapshot := self._read(place)) is not None]
        exports = sorted((item for item in found if item[0].ephemeral), key=lambda item: item[0].created_at)
        surplus = exports[:-_KEPT_EXPORTS]
        for snapshot, place in found:
            if snapshot.expired or (snapshot, place) in surplus:
                shutil.rmtree(place)
