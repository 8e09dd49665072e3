"""Types for the classes of settings, which pydantic checks without converting values.

A setting is a field with a default, its bounds and, below it, the text of docs/settings.md:

    @dataclass(config=SETTINGS)
    class Group:
        epochs: Int = Field(default=5, ge=1)
        \"\"\"Passes over the train split.\"\"\"

`__post_init__` checks settings that depend on each other, and raises ConfigError.
"""

from __future__ import annotations

import os
import re
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, Strict, ValidationInfo
from pydantic_core import PydanticCustomError

SETTINGS = ConfigDict(
    extra="forbid",
    allow_inf_nan=False,
    use_attribute_docstrings=True,
)

# Without Strict, `true` would become 1, and "3" would become 3.
Int = Annotated[int, Strict()]
Float = Annotated[float, Strict()]
Bool = Annotated[bool, Strict()]
Share = Annotated[float, Strict(), Field(ge=0, le=1)]
Positive = Annotated[float, Strict(), Field(gt=0)]

Count = Annotated[int, Strict(), Field(ge=1)]

TYPED_HERE = "typed here"
"""The validation context of settings that were given to a program on this machine."""


def _as_path(text: str, info: ValidationInfo) -> str:
    # As a path, s3://bucket/photos would be in the folder `s3:`, which programs would even create.
    if info.context == TYPED_HERE and re.match(r"[A-Za-z][\w+.-]+://", text):
        message = "must be a path on this machine; `aws s3 sync` copies from and to S3, and a job "
        message += "on SageMaker gets a prefix as a channel"
        raise PydanticCustomError("uri", message)
    return os.path.expanduser(text)  # noqa: PTH111 - Path's raises for an unknown user


FilePath = Annotated[str, Field(min_length=1), AfterValidator(_as_path)]
"""A path. `~` is the home folder, which a shell does not expand after `=`. Not empty: an unset
variable would become the working directory."""


Words = Annotated[
    list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
]
"""A list of words; a single word is a list of one."""
