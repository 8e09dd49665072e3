"""Milliseconds as people read them."""


def shown_milliseconds(value: float) -> str:
    """Three digits or more, never an exponent: `0.12`, `12.3`, `1234`."""
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"
