"""Ray clusters that rldbg did not start: their paused workers listed, attached and resumed."""
