"""What every plane shares: errors, findings, identity, run folders, environment, redaction, recipes, Ray clusters."""

from typing import TYPE_CHECKING

from rldbg.lazy import lazy_names

if TYPE_CHECKING:
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

__all__ = [
    "REDACTED",
    "TOKEN_HINT",
    "VARIABLES",
    "Environment",
    "ExitCode",
    "Finding",
    "Identity",
    "IncompleteDataError",
    "PrerequisiteError",
    "RldbgError",
    "Run",
    "SampleId",
    "Severity",
    "UnreachableError",
    "UsageError",
    "Variable",
    "by_severity",
    "dashboard_auth_mode",
    "demands_token",
    "is_secret_name",
    "join_ray",
    "load_recipe",
    "prompt_hash",
    "ray_access",
    "ray_token",
    "redact",
    "redact_text",
    "to_html",
    "versions",
    "worst",
]

_MODULES = {
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
    "identity": ("Identity", "SampleId", "prompt_hash"),
    "ray_clusters": ("TOKEN_HINT", "dashboard_auth_mode", "demands_token", "join_ray", "ray_access", "ray_token"),
    "recipe": ("load_recipe",),
    "redaction": ("REDACTED", "is_secret_name", "redact", "redact_text"),
    "run": ("Run", "versions"),
}

__getattr__, __dir__ = lazy_names(__name__, {name: module for module, names in _MODULES.items() for name in names})
