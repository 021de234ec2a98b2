"""What every section of the configuration file has in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]


class Section(BaseModel):
    """Unknown keys are errors, and so are values of another type."""

    # Strict: "4" is not 4, and 1 is not true.  Values are kept out of messages, a URL may hold a password.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True)
