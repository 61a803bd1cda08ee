"""What every plane shares: errors, findings, identity, run folders, environment, redaction, recipes, Ray clusters."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
    from rldbg.core.debugger import call_under_pdb
    from rldbg.core.environment import VARIABLES, Environment, Variable
    from rldbg.core.errors import (
        ExitCode,
        IncompleteDataError,
        PrerequisiteError,
        RldbgError,
        UnreachableError,
        UsageError,
    )
    from rldbg.core.findings import Finding, Severity, by_severity, to_html, worst
    from rldbg.core.http import NoAnswerError, async_http_client, bearer_header, http_request
    from rldbg.core.identity import Identity, SampleId, prompt_hash
    from rldbg.core.ray_clusters import (
        TOKEN_HINT,
        dashboard_auth_mode,
        demands_token,
        join_ray,
        ray_access,
        ray_token,
    )
    from rldbg.core.recipe import load_recipe
    from rldbg.core.redaction import REDACTED, is_secret_name, redact, redact_text
    from rldbg.core.run import Run, versions
    from rldbg.core.settings import CLOSED, check_values, described, setting, unknown_key, validated
    from rldbg.core.user_object import load_user_object, user_code, user_traceback

__all__ = [
    "CLOSED",
    "REDACTED",
    "TOKEN_HINT",
    "VARIABLES",
    "Environment",
    "ExitCode",
    "Finding",
    "Identity",
    "IncompleteDataError",
    "NoAnswerError",
    "PrerequisiteError",
    "RldbgError",
    "Run",
    "SampleId",
    "Severity",
    "UnreachableError",
    "UsageError",
    "Variable",
    "async_http_client",
    "bearer_header",
    "by_severity",
    "call_under_pdb",
    "check_values",
    "dashboard_auth_mode",
    "demands_token",
    "described",
    "http_request",
    "is_secret_name",
    "join_ray",
    "load_recipe",
    "load_user_object",
    "prompt_hash",
    "ray_access",
    "ray_token",
    "redact",
    "redact_text",
    "setting",
    "to_html",
    "unknown_key",
    "user_code",
    "user_traceback",
    "validated",
    "versions",
    "worst",
]

_MODULES = {
    "debugger": ("call_under_pdb",),
    "environment": ("VARIABLES", "Environment", "Variable"),
    "errors": (
        "ExitCode",
        "IncompleteDataError",
        "PrerequisiteError",
        "RldbgError",
        "UnreachableError",
        "UsageError",
    ),
    "findings": ("Finding", "Severity", "by_severity", "to_html", "worst"),
    "http": ("NoAnswerError", "async_http_client", "bearer_header", "http_request"),
    "identity": ("Identity", "SampleId", "prompt_hash"),
    "ray_clusters": ("TOKEN_HINT", "dashboard_auth_mode", "demands_token", "join_ray", "ray_access", "ray_token"),
    "recipe": ("load_recipe",),
    "redaction": ("REDACTED", "is_secret_name", "redact", "redact_text"),
    "run": ("Run", "versions"),
    "settings": ("CLOSED", "check_values", "described", "setting", "unknown_key", "validated"),
    "user_object": ("load_user_object", "user_code", "user_traceback"),
}

__getattr__, __dir__ = lazy_names(__name__, {name: module for module, names in _MODULES.items() for name in names})
