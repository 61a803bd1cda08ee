"""Where an option's value comes from: flag, then environment, then the project file, then its default.

The project file is the nearest `rldbg.toml` upwards of the working directory (or RLDBG_CONFIG), one table a verb:

    [show]
    layout = "slime"
"""

import tomllib
from pathlib import Path
from typing import Any

from rldbg.core.environment import Environment
from rldbg.core.errors import UsageError


def project_file() -> Path | None:
    named = Environment().text("RLDBG_CONFIG")
    if named:
        return Path(named)
    here = Path.cwd()
    return next((file for folder in (here, *here.parents) if (file := folder / "rldbg.toml").is_file()), None)


def project_settings() -> dict[str, Any]:
    """The project file as click's default map; empty when there is none."""
    file = project_file()
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"cannot read the project file {file}: {error.strerror}", "unset RLDBG_CONFIG or make it"
        ) from error
    except ValueError as error:
        raise UsageError(
            f"{file} is not valid TOML: {error}", "mend the file, or point RLDBG_CONFIG elsewhere"
        ) from error
