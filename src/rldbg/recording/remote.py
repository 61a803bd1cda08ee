"""Recordings behind a URL, through fsspec: listed at once, fetched file by file when a file is read.

A fetched file is kept under a name made of its URL, size and version, so that a file which changed at its source is
fetched again, and one that did not never is. The cache may be deleted at any time.
"""

import os
import posixpath
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

from rldbg.core import Environment, IncompleteDataError, PrerequisiteError, UnreachableError, explained_as, redact_text
from rldbg.recording.tree import INDEX_NAME, FileFact

_INSTALL = "pip install 'rldbg[cloud]'"
_VERSION_KEYS = ("ETag", "etag", "LastModified", "last_modified", "Last-Modified", "mtime", "created", "md5Hash")
_REQUESTS_AT_ONCE = 16
_NOT_FOUND, _REFUSED = 404, (401, 403, 407)


class RemoteTree:
    """Files below a URL, or one file."""

    def __init__(self, url: str, environment: Environment | None = None) -> None:
        self._url = url.rstrip("/")
        self._cache = Path((environment or Environment()).text("RLDBG_CACHE")).expanduser()
        self._fs, self._root = _filesystem(self._url)

    @property
    def title(self) -> str:
        return redact_text(self._url)

    @property
    def folder(self) -> str:
        parent = posixpath.dirname(self._root) if self._is_file else self._root
        return posixpath.basename(parent.rstrip("/"))

    @property
    def files(self) -> tuple[FileFact, ...]:
        return tuple(sorted(FileFact(name, int(info.get("size") or 0)) for name, info in self._found.items()))

    def place(self, name: str) -> str:
        return self.title if self._is_file else f"{self.title}/{name}"

    def local(self, name: str) -> Path:
        """The file's copy on this machine, fetched if it is not cached yet."""
        info = self._found.get(name)
        if info is None:
            raise IncompleteDataError(f"{self.place(name)}: no such file", f"rldbg show {self.title}")
        version = [str(info.get(key)) for key in _VERSION_KEYS if info.get(key) is not None]
        identity = "\0".join([self._url, name, str(info.get("size")), *version])
        digest = blake2b(identity.encode(), digest_size=12).hexdigest()
        target = self._cache / digest / posixpath.basename(name)
        if not target.is_file():
            self._fetch(name, info, target)
        return target

    def _fetch(self, name: str, info: Mapping[str, Any], target: Path) -> None:
        """An error concerns one file only; the others are still fetched."""
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        try:
            with _reaching(self.place(name)):
                self._fs.get_file(str(info["name"]), str(temporary))
            arrived, expected = temporary.stat().st_size, info.get("size")
            if expected is not None and arrived < expected:
                raise IncompleteDataError(
                    f"{self.place(name)}: only {arrived} of {expected} bytes arrived", "try again, or copy it by hand"
                )
            temporary.replace(target)
        except (UnreachableError, PrerequisiteError) as error:
            raise IncompleteDataError(f"could not be fetched: {error.message}", error.hint) from error
        finally:
            temporary.unlink(missing_ok=True)

    @cached_property
    def _is_file(self) -> bool:
        with _reaching(self.title):
            return bool(self._fs.isfile(self._root)) and not self._fs.isdir(self._root)

    @cached_property
    def _found(self) -> dict[str, dict[str, Any]]:
        """Name below the root to what the store says about the file."""
        is_file = self._is_file
        with _reaching(self.title):
            if is_file:
                return {posixpath.basename(self._root): self._fs.info(self._root)}
            listed: dict[str, dict[str, Any]] = self._fs.find(self._root, detail=True)
            if not listed:
                self._fs.info(self._root)  # listing an unreachable address may give an empty list
            infos = [info for path, info in listed.items() if _is_visible(self._below(path))]
            unsized = [info["name"] for info in infos if info.get("size") is None]
            with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:  # an HTTP listing has names only
                sized = dict(zip(unsized, pool.map(self._size, unsized), strict=True))
        return {self._below(str(info["name"])): {**info, **sized.get(info["name"], {})} for info in infos}

    def _size(self, path: str) -> dict[str, Any]:
        """What the store says about one file; nothing where it does not answer, which fetching it will explain."""
        try:
            found: dict[str, Any] = self._fs.info(path)
        except OSError:
            return {}
        return found

    def _below(self, path: str) -> str:
        return path.removeprefix(self._root).lstrip("/")


def _is_visible(name: str) -> bool:
    """A name a recording can have: nothing hidden, and nothing that would climb out of a folder."""
    parts = name.split("/")
    return name != INDEX_NAME and not any(part.startswith(".") or not part for part in parts)


def _filesystem(url: str) -> tuple[Any, str]:
    message = "reading from a URL needs fsspec, which is not installed"
    with explained_as(PrerequisiteError, ImportError, message, _INSTALL):
        from fsspec.core import url_to_fs
    try:
        filesystem, root = url_to_fs(url)
    except ImportError as error:
        protocol = url.partition("://")[0]
        raise PrerequisiteError(f"reading {protocol}:// needs a package: {error}", _INSTALL) from error
    except ValueError as error:
        raise IncompleteDataError(
            f"{redact_text(url)}: {error}", "give a URL that fsspec knows, such as s3:// or https://"
        ) from error
    return filesystem, str(root).rstrip("/")


@contextmanager
def _reaching(title: str) -> Iterator[None]:
    """Translates the errors of store clients into ours."""
    try:
        yield
    except FileNotFoundError as error:
        cause = error.__cause__
        is_absence = isinstance(cause, FileNotFoundError) or getattr(cause, "status", None) == _NOT_FOUND
        if isinstance(cause, _client_errors()) and not is_absence:
            raise _unreachable(title, cause) from error
        raise IncompleteDataError(f"{title}: not found", "check the URL, and that it ends at the recording") from error
    except PermissionError as error:
        raise PrerequisiteError(
            f"{title}: no permission ({error})", "set the store's credentials and try again"
        ) from error
    except _client_errors() as error:
        raise _unreachable(title, error) from error


def _unreachable(title: str, error: BaseException) -> UnreachableError | PrerequisiteError:
    status = getattr(error, "status", None)
    if status in _REFUSED:
        hint = "give the credentials that the server asks for, for example https://USER:PASSWORD@HOST/..."
        return PrerequisiteError(f"{title}: no permission ({status} {getattr(error, 'message', '')})", hint)
    hint = "check the network and the store's address, then try again"
    if "credential" in str(error).lower():
        hint = "give the store's credentials (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY ...), then try again"
    return UnreachableError(f"{title}: {error}", hint)


def _client_errors() -> tuple[type[Exception], ...]:
    """OSError, and what those clients raise that are loaded at all."""
    known = {"aiohttp": "ClientError", "botocore.exceptions": "BotoCoreError"}
    loaded = (getattr(sys.modules[module], name) for module, name in known.items() if module in sys.modules)
    return (OSError, *loaded)
