import pickle

import pytest

from rldbg.core import IncompleteDataError, PrerequisiteError, RldbgError, SampleId, UnreachableError, UsageError


@pytest.mark.parametrize("kind", [RldbgError, UsageError, PrerequisiteError, IncompleteDataError, UnreachableError])
def test_errors_cross_process_borders(kind):
    error = pickle.loads(pickle.dumps(kind("what", "try this")))
    assert type(error) is kind and str(error) == "what" and error.hint == "try this"
    assert set(error.to_dict()) == {"kind", "message", "hint"}


def test_errors_are_also_the_standard_ones():
    assert issubclass(UsageError, ValueError) and issubclass(UnreachableError, ConnectionError)


def test_sample_ids_read_back_what_they_print():
    for sample in (SampleId("g0", 3), SampleId("data/train/7", 0), SampleId("", -1)):
        assert SampleId.parse(str(sample)) == sample
    with pytest.raises(ValueError, match="GROUP/RUN"):
        SampleId.parse("g0")
