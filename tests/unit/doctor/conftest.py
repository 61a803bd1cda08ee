"""The knowledge that comes with rldbg, read once for all tests."""

import pytest

from rldbg.doctor import Library, SearchIndex


@pytest.fixture(scope="session")
def library():
    return Library.load()


@pytest.fixture(scope="session")
def index(library):
    return SearchIndex(library)
