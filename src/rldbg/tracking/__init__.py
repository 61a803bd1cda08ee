"""`rldbg track`: what rldbg finds in each step, for experiment trackers and for Prometheus."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.tracking.prometheus import PrometheusEndpoint, exposition, grafana_dashboard
    from rldbg.tracking.steps import RecordedSteps, StepMeasurements

__getattr__, __dir__ = lazy_names(__name__)
