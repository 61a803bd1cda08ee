"""The documented query parameters of every route; like the fields of a body, none is ignored.

Values are texts, so the neutral values of a refused parameter are texts as well.
"""

from collections.abc import Mapping
from types import MappingProxyType

from rldbg.inference.protocols.route_fields import FieldRule, Rules

_READ, _NO_EFFECT = FieldRule("read"), FieldRule("no effect")
_NO = FieldRule("refused", ("", "false", "False", "0", "0.0"))
_VERSION: Rules = {"weight_version": _READ}
_URL: Rules = {"url": _READ}
# Anthropic's beta clients name their interface so; the fields of the body say what they ask for.
_BETA: Rules = {"beta": _NO_EFFECT}

# Memory stays where it is, there is no prefix cache and one rank.
QUERY_FIELDS: Mapping[str, Rules] = MappingProxyType(
    {
        "/pause": {"mode": _READ, "clear_cache": _NO_EFFECT, "wait_for_inflight_requests": _NO},
        "/sleep": {"mode": _READ, "level": _NO_EFFECT},
        "/wake_up": {"tags": _NO_EFFECT},
        "/reset_prefix_cache": {"reset_running_requests": _NO, "reset_external": _NO_EFFECT},
        "/flush_cache": {"timeout": _NO},
        "/get_world_size": {"include_dp": _NO_EFFECT},
        "/server_info": {"config_format": FieldRule("refused", ("json",))},
        "/v1/loads": {
            "dp_rank": FieldRule("refused", ("0",)),
            "include": FieldRule("refused", ("core", "all")),
            "format": FieldRule("refused", ("json",)),
        },
        "/v1/responses/{response}": {
            "include": FieldRule("refused", ()),
            "include[]": FieldRule("refused", ()),
            "stream": _NO,
            "starting_after": FieldRule("refused", ()),
            "include_obfuscation": _NO_EFFECT,
        },
        "/v1/models": {"limit": _NO_EFFECT, "after": FieldRule("refused", ()), "after_id": FieldRule("refused", ()),
                       "before_id": FieldRule("refused", ())},
        "/v1/messages": _BETA,
        "/v1/messages/count_tokens": _BETA,
        "/update_weights": _VERSION,
        "/update_weights_from_tensor": _VERSION,
        "/add_worker": _URL,
        "/remove_worker": _URL,
    }
)  # fmt: skip
