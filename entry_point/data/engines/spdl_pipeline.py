"""SPDL's pipeline, also on Python 3.10.

spdl-core (0.4 to 0.8) declares Python 3.10 and imports `typing.Self`, which came with 3.11.
"""

from __future__ import annotations

import sys
import typing

import typing_extensions

if sys.version_info < (3, 11) and not hasattr(typing, "Self"):
    typing.Self = typing_extensions.Self

from spdl.pipeline import Pipeline, PipelineBuilder

__all__ = ["Pipeline", "PipelineBuilder"]
