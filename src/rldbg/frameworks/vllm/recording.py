"""Records of a vLLM worker: the weights that its model holds after an update."""

from typing import Any

from rldbg.frameworks.recorded import RecordedCall
from rldbg.frameworks.weight_recording import HeldWeights


class VllmRecording(HeldWeights):
    def load_model(self, worker: Any, *_: Any, **__: Any) -> RecordedCall:
        """What an engine starts with was not sent."""
        yield
        self.forget()

    def load_weights(self, loader: Any, *_: Any, **__: Any) -> RecordedCall:
        yield
        self.has_new_weights()

    def execute_model(self, worker: Any, *_: Any, **__: Any) -> RecordedCall:
        self.before_batch(worker.model_runner.get_model)
        yield


RECORDING = VllmRecording
