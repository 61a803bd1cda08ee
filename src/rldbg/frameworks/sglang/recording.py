"""Records of a scheduler of SGLang: the weights that its model holds after an update."""

from typing import Any

from rldbg.frameworks.recorded import RecordedCall
from rldbg.frameworks.weight_recording import HeldWeights


class SglangRecording(HeldWeights):
    def updated(self, updater: Any, *_: Any, **__: Any) -> RecordedCall:
        """`updater` belongs to one model; that of a draft model is not what was sent."""
        yield
        runner = updater.get_model_runner() if hasattr(updater, "get_model_runner") else updater
        if not getattr(runner, "is_draft_worker", False):
            self._runner = runner
            self.has_new_weights()

    def run_batch(self, scheduler: Any, *_: Any, **__: Any) -> RecordedCall:
        self.before_batch(lambda: self._runner.model)
        yield


RECORDING = SglangRecording
