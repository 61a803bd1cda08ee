"""`rldbg watch`: checks a run while it is recorded, keeps the steps around an event, and stops the ranks on request."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.tripwire.events import Event, EventLog
    from rldbg.tripwire.judge import Alarm, Judge
    from rldbg.tripwire.measures import StepMeasures
    from rldbg.tripwire.rules import WatchRule, built_in_rules, read_rules
    from rldbg.tripwire.settings import WATCHED_KINDS, WatchSettings
    from rldbg.tripwire.watched_loop import WatchedLoop, watch
    from rldbg.tripwire.watcher import Watcher
    from rldbg.tripwire.watcher_process import WatchedRun, WatcherProcess

__getattr__, __dir__ = lazy_names(__name__)
