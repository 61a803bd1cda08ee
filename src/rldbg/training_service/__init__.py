"""A local implementation of hosted training APIs: the Tinker and Weaver protocols, with everything recorded."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.training_service.settings import ServiceSettings

__getattr__, __dir__ = lazy_names(__name__)
