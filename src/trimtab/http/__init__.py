"""The HTTP door: health, readiness, metrics, and the operator's view and requests as JSON. Nothing decides here."""
