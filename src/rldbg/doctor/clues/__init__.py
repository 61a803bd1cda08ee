"""What the logs of this run say about one failure: its settings, its numbers, its releases, whose call does not fit."""
