"""A tokenizer without files, for servers of the tiny model."""

from rldbg.inference.embedded.text import NoText
from rldbg.trainer import CharacterTokenizer


class Characters(NoText):
    """The tiny model's tokenizer, without the files."""

    def __init__(self):
        self._tokenizer = CharacterTokenizer()

    def encode(self, text):
        return self._tokenizer.encode(text)

    def decode(self, tokens, *, skip_special=True):
        return self._tokenizer.decode(list(tokens))

    def chat(self, messages, tools, options=None, ending="answer"):
        return self.encode(" ".join(message["content"] for message in messages))
