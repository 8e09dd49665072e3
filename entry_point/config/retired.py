"""What is no longer there, and what to use instead.

A key is spelled as in `trainer.onnx`, one value of a key that stays as in `augment.name=auto`, and
an extra as in `EXTRAS=onnx`. Uses the standard library only, as `ConfigError` does.
"""

RETIRED = {
    "EXTRAS=onnx": "the recipe ONNX in docs/adapt.md",
    "trainer.onnx": "the recipe ONNX in docs/adapt.md",
}


def retired(*spellings: str) -> str:
    """Returns the words after the first of `spellings` that is retired; empty if none is."""
    return next((f"retired: use {RETIRED[each]}" for each in spellings if each in RETIRED), "")
