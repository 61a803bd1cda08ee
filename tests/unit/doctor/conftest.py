"""The knowledge that comes with rldbg, read once for all tests."""

import pytest

from rldbg.doctor import Library, SearchIndex, diagnose


@pytest.fixture(scope="session")
def library():
    return Library.load()


@pytest.fixture(scope="session")
def index(library):
    return SearchIndex(library)


@pytest.fixture
def verdict(tmp_path, index):
    """The diagnosis of a log with this text."""

    def run(text):
        (tmp_path / "x.log").write_text(text)
        return diagnose([tmp_path / "x.log"], index=index)

    return run
