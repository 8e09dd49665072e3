"""What the classes of settings share: pydantic checks them, and numbers are taken as typed.

A setting is a field with a default, its bounds and, below it, the text of docs/settings.md:

    @dataclass(config=SETTINGS)
    class Group:
        epochs: Int = Field(default=5, ge=1)
        \"\"\"Passes over the train split.\"\"\"

What several settings must agree on, `__post_init__` checks; it raises ConfigError.
"""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, Strict

SETTINGS = ConfigDict(
    extra="forbid",
    allow_inf_nan=False,
    use_attribute_docstrings=True,
)

# Without Strict, `true` would be the number 1, and "3" the number 3.
Int = Annotated[int, Strict()]
Float = Annotated[float, Strict()]
Bool = Annotated[bool, Strict()]
Share = Annotated[float, Strict(), Field(ge=0, le=1)]
Positive = Annotated[float, Strict(), Field(gt=0)]

Count = Annotated[int, Strict(), Field(ge=1)]
FilePath = Annotated[str, Field(min_length=1), AfterValidator(os.path.expanduser)]
"""A path; `~` is the home folder, which a shell does not expand after `=`. An empty one, as of a
variable that is not set, would be the working directory."""


Words = Annotated[
    list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
]
"""A list; a word alone is a list of one."""
