"""The web application of `rldbg ui`: the results of the other verbs as JSON, and the page that shows them."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.ui.application import build_application
    from rldbg.ui.catalogue import Catalogue
    from rldbg.ui.compare_pages import comparison_page
    from rldbg.ui.export import export_report
    from rldbg.ui.guard import Access
    from rldbg.ui.notebook import View
    from rldbg.ui.opened_run import OpenedRun
    from rldbg.ui.server import serve

__getattr__, __dir__ = lazy_names(__name__)
