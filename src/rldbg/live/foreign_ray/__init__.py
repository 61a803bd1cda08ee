"""Ray clusters that rldbg did not start: their paused workers listed, held and steered."""
