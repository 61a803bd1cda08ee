"""The application inside a notebook: `rldbg.view(run)` is a frame with its page."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from rldbg.core import PrerequisiteError, explained_as
from rldbg.recording import Recording
from rldbg.ui.catalogue import Catalogue
from rldbg.ui.server import BackgroundServer


class View:
    """A page of the application; a notebook shows it, `url` opens it elsewhere, `close` ends its server."""

    def __init__(self, runs: Sequence[Path | str | Recording], *, height: int, tokenizer: str | None = None) -> None:
        with explained_as(
            PrerequisiteError, ImportError, "rldbg.view needs a web server", "pip install 'rldbg[serve]'"
        ):
            from rldbg.ui.guard import Access
        catalogue = Catalogue([_root(run) for run in runs], tokenizer=tokenizer)
        self._server = BackgroundServer(catalogue, Access(is_in_notebook=True))
        self.url = self._server.url
        self.height = height

    def close(self) -> None:
        self._server.stop()

    def __repr__(self) -> str:
        return f"<rldbg view {self.url}>"

    def _repr_html_(self) -> str:
        return (
            f'<iframe src="{escape(self.url)}" width="100%" height="{int(self.height)}" '
            'style="border:1px solid #8884" title="rldbg"></iframe>'
        )


def _root(run: Path | str | Recording) -> str:
    if isinstance(run, Recording):
        return str(run.run.path) if run.run is not None else run.title
    return str(run)
