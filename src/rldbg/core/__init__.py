"""What every plane shares: errors, findings, identity, run folders, environment, redaction."""

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
from rldbg.core.redaction import REDACTED, is_secret_name, redact, redact_text
from rldbg.core.run import Run

__all__ = [
    "REDACTED",
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
    "is_secret_name",
    "prompt_hash",
    "redact",
    "redact_text",
    "to_html",
    "worst",
]
