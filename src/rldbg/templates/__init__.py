"""Renders conversations with a chat template turn by turn, and checks the properties that multi-turn training needs."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.templates.conversations import (
        Conversation,
        conversation_of_roles,
        conversation_with_tools,
        read_conversation,
        read_tools,
        standard_conversations,
    )
    from rldbg.templates.examination import Property, TemplateReport, examine_template
    from rldbg.templates.rendering import ChatTemplate, load_template
    from rldbg.templates.turns import RenderedConversation

__getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "ChatTemplate",
    "Conversation",
    "Property",
    "RenderedConversation",
    "TemplateReport",
    "conversation_of_roles",
    "conversation_with_tools",
    "examine_template",
    "load_template",
    "read_conversation",
    "read_tools",
    "standard_conversations",
]
