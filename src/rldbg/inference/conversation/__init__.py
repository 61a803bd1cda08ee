"""One model of a conversation, to which every chat protocol is translated: messages, tools, the parts of an answer."""
