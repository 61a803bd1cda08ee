"""What all packages share: errors, findings, identity, run folders, environment, redaction, recipes, Ray clusters."""

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
        did_you_mean,
        explained_as,
    )
    from rldbg.core.findings import Finding, Severity, by_severity, worst
    from rldbg.core.http import NoAnswerError, async_http_client, bearer_header, http_request, listen
    from rldbg.core.identity import Identity, SampleId, prompt_hash
    from rldbg.core.numbers import number_ranges
    from rldbg.core.processes import is_running
    from rldbg.core.ray_clusters import (
        TOKEN_HINT,
        dashboard_auth_mode,
        demands_token,
        join_ray,
        ray_access,
        ray_token,
    )
    from rldbg.core.recipe import compose, load_recipe, resolve_block
    from rldbg.core.redaction import REDACTED, is_secret_name, redact, redact_text
    from rldbg.core.run import Run, versions, write_whole
    from rldbg.core.settings import check_values, described, refuse_unknown, setting, unknown_key, validated
    from rldbg.core.settings_flags import as_flags, read_flags
    from rldbg.core.user_object import call_under_pdb, load_user_object, user_code, user_traceback

__getattr__, __dir__ = lazy_names(__name__)
