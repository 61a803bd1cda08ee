"""Results as terminal text, JSON and HTML: the only place that renders. Nothing is computed here."""
