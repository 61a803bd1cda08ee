"""`rldbg track`: what rldbg finds in each step, for experiment trackers and for Prometheus."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.tracking.following import RecordedSteps
    from rldbg.tracking.measurements import StepMeasurements
    from rldbg.tracking.prometheus import PrometheusEndpoint, exposition, grafana_dashboard

__getattr__, __dir__ = lazy_names(__name__)
