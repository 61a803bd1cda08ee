"""Why scoring a response failed: a field that the caller did not give, or a text that could not be read."""

import re

from rldbg.doctor.clues.cause_words import CauseWords
from rldbg.doctor.logs.evidence import Failure

ENTRY = "reward-function-failed"
"""The entry of exceptions that were raised where responses are scored."""

_KEY = re.compile(r"KeyError: ['\"](?P<key>[\w.-]{1,80})['\"]$")
_ROW = re.compile(
    r"\b(?P<name>(?:reward_)?extra_infos?(?:_dict)?|(?:\w+_)?kwargs|(?:\w+_)?metadata|row|sample|example|"
    r"data_item|non_tensor_batch|reward_model)\b"
)
"""How scoring functions call what a framework hands to them of a row of the data."""
_READS_TEXT = re.compile(
    r"json\.loads|literal_eval|\bre\.(?:match|search|fullmatch|findall)|\.groups?\(|\b(?:float|int|Fraction|Decimal)\(|"
    r"\.(?:r?split|findall|index)\("
)
_OF_TEXT = re.compile(
    r"(?:json\.(?:decoder\.)?)?JSONDecodeError|ValueError: (?:could not convert string to float|"
    r"invalid literal for int|substring not found|not enough values to unpack)|"
    r"AttributeError: 'NoneType' object has no attribute 'groups?'"
)
"""What Python says of a text that has another form than expected."""


def told_of_scoring(failure: Failure) -> CauseWords | None:
    """Decided by the expression that failed; nothing where it does not tell."""
    missing = _KEY.search(failure.headline)
    name = _looked_up_in(failure.code, missing["key"]) if missing else ""
    if missing and name:
        key = missing["key"]
        return CauseWords(
            title=f"The scoring function was not given the field {key} in {name}",
            title_zh=f"评分函数收到的 {name} 中没有字段 {key}",
            detail=f"the failing line is: {failure.code}",
            cause=(
                f"By its name {name} is what the caller hands to the scoring function, and it has no {key}: likely "
                "the data was prepared without it, or the framework's path that calls the function (another reward "
                "manager or loop, validation) leaves it out. It is not about what the response says."
            ),
            fix=(
                f"Print the keys of {name} at that line, and compare them with the columns of one row of the data",
                f"If the row has no {key}: add it where the data is prepared. If the framework is to fill it in: look "
                f"for {key} in the code that calls the function, and use a release or a path that sets it",
                f"If the score can do without it: read it with .get({key!r}, default)",
            ),
            is_whole=True,
        )
    if _OF_TEXT.match(failure.headline) or (not missing and _READS_TEXT.search(failure.code)):
        return CauseWords(
            cause=(
                "It was raised where a text is read: a response (or a ground truth) does not have the form that the "
                "code expects, such as no answer in it, another type or no valid JSON."
            ),
            fix=(
                "Give 0 and log the text when a response cannot be read; if it is the ground truth, fix that row of "
                "the data",
                "Try it alone on recorded responses: rldbg show RUN --step N --sample ID prints one",
            ),
            is_whole=True,
        )
    if missing:
        return CauseWords(
            cause=(
                f"A mapping where responses are scored has no key {missing['key']}: if it is an argument of the "
                "function, its caller did not give it; if it was parsed from the response, the model wrote another "
                "form."
            ),
            fix=("Print the keys of that mapping at the failing line, and look who fills it",),
            is_whole=True,
        )
    return None


def _looked_up_in(code: str, key: str) -> str:
    """The mapping of a row in which a line looks a key up."""
    at = re.search(rf"(?P<what>[\w.]+(?:\[[^\[\]]{{1,60}}\])*?)\[['\"]{re.escape(key)}['\"]\]", code)
    names = _ROW.findall(at["what"]) if at else []
    return names[-1] if names else ""
