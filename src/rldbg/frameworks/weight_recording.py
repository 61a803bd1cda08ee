"""Records of weights: what a trainer sends, while it sends it, and what an engine holds when it first uses it.

Engines are seldom told a version: the time says which one was sent last. Weights that come in many calls are complete
when the engine runs its next batch, which is when they matter. Values are kept only where the kind `weight_values` is
named beside `weights`.
"""

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rldbg.agent import say
from rldbg.frameworks.engine_weights import held_pieces
from rldbg.frameworks.recorded import FrameworkRecording, Recorded, process_hooks
from rldbg.recording import Recorder
from rldbg.weights import (
    Box,
    Fingerprint,
    FingerprintStream,
    LiveBases,
    fingerprints_of_pieces,
    snapshot_fields,
    value_fields,
)


class SentWeights:
    """The tensors of one version, on their way to an engine."""

    def __init__(self, recorded: Recorded, version: int, dtype: Any = None) -> None:
        self._recorder = recorded.recorder()
        self._version = version
        self._began = time.time()
        self._dtype = dtype
        """What the engine keeps floating-point weights in; as they are sent if not given."""
        self._found = FingerprintStream()
        self._bases = LiveBases()
        self._seen: dict[str, int] = {}
        self._problem = ""

    def adapted(self, model: Any, name_of: Callable[[str], str] = lambda name: name) -> None:
        """Looks at what the weights of a peft model are before its adapters are merged into them."""
        self._bases.look_at(model, self._dtype, name_of)

    def passing(self, pairs: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """The same (name, tensor) pairs, each looked at before it is passed on."""
        for name, tensor in pairs:
            try:
                self._look_at(name, tensor)
            except Exception as error:  # noqa: BLE001 - the hook inside the user's training, which must never kill it
                self._problem = self._problem or f"{name}: {error!r}"
            yield name, tensor

    def record(self) -> None:
        """Nothing, if a tensor could not be looked at: a version with a part missing would look like a fault."""
        if self._problem:
            raise ValueError(f"the weights of version {self._version} are not recorded: {self._problem}")
        if self._seen:
            fields = snapshot_fields("sent", self._found.read(), base=self._bases.read())
            self._recorder.record("weights", step=self._version, micro=0, at=self._began, **fields)

    def _look_at(self, name: str, tensor: Any) -> None:
        # One at a time: a sender may use a tensor's memory again as soon as it asks for the next.
        if self._dtype is not None and tensor.is_floating_point():
            tensor = tensor.to(self._dtype)
        self._found.add(name, tensor)
        if name not in self._seen:
            _record_values(self._recorder, self._version, 0, len(self._seen), (name, tensor, Box.whole(tensor.shape)))
        self._seen.setdefault(name, len(self._seen))


class HeldWeights(FrameworkRecording):
    """A process of an engine: its model is looked at before the first batch after an update."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__(recorded)
        self._updates = 0
        self._has_new = False

    def has_new_weights(self) -> None:
        self._has_new = True

    def forget(self) -> None:
        self._has_new = False

    def before_batch(self, model: Callable[[], Any]) -> None:
        if not self._has_new:
            return
        self._has_new = False
        recorder = self.recorded.recorder()
        if recorder.wants("weights", self._updates):
            pieces = list(held_pieces(model()))
            fields = snapshot_fields("held", fingerprints_of_pieces(pieces))
            # Workers of one engine have one parent; each has pieces of its own.
            engine = f"{socket.gethostname()}:{os.getppid()}"
            micro = 1 + os.getpid()
            recorder.record("weights", step=self._updates, micro=micro, engine=engine, at=time.time(), **fields)
            for number, piece in enumerate(pieces):
                _record_values(recorder, self._updates, micro, number, piece)
            recorder.end_step(self._updates)
        self._updates += 1


def record_served(ask: Callable[[], Mapping[str, Any]], version: int, engine: str = "") -> None:
    """What a server of rldbg holds, by its answer to /weight_fingerprints. A server that is not told versions is named:
    the time says which one it holds then."""
    hooks = process_hooks()
    if hooks is None or not hooks.recorded.recorder().wants("weights", version):
        return
    try:
        held = [Fingerprint.from_dict(item) for item in ask()["tensors"]]
    except (RuntimeError, OSError, ValueError, KeyError) as error:
        say(f"the weights that the server holds are not recorded: {error!r}; training continues")
        return
    place = {"micro": 1 + os.getpid(), "engine": engine, "at": time.time()} if engine else {"micro": 1}
    hooks.recorded.recorder().record("weights", step=version, **place, **snapshot_fields("held", held))


def _record_values(recorder: Recorder, step: int, snapshot: int, number: int, piece: tuple[str, Any, Box]) -> None:
    if "weight_values" in (recorder.settings.kinds or ()) and recorder.wants("weight_values", step):
        recorder.record("weight_values", step=step, **value_fields(snapshot, number, *piece))
