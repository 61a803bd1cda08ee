"""Word lists are written as text: long ones stay readable."""


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())
