"""A proxy before any inference engine that records every generation and changes nothing of what the engine answers."""
