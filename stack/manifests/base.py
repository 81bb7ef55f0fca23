"""What all manifest models share: unknown keys name their nearest known one, values never change."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError


class Strict(BaseModel):
    """A frozen model that refuses unknown keys and says which known key is nearest."""

    # Each command reads one or two kinds of manifest: the others' validators are not built.
    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, defer_build=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = {field.alias or name for name, field in cls.model_fields.items()} | set(cls.model_fields)
        shown = sorted(field.alias or name for name, field in cls.model_fields.items())
        for key in data:
            if key not in known:
                near = difflib.get_close_matches(str(key), shown, n=1, cutoff=0.5)
                hint = f"did you mean '{near[0]}'?" if near else f"known keys: {', '.join(shown)}"
                raise PydanticCustomError(
                    "unknown_key", "unknown key '{key}'; {hint}", {"key": str(key), "hint": hint}
                )
        return data


class Band(Strict):
    """A closed interval; a missing end is open.

    `got in band` asks whether a value lies inside; NaN never does.
    """

    min: float | None = None
    max: float | None = None

    @model_validator(mode="after")
    def _ends_in_order(self) -> Band:
        if self.min is None and self.max is None:
            raise ValueError("a band needs min, max or both: without them it would pass everything")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min:g} is above max {self.max:g}")
        return self

    def __contains__(self, got: float) -> bool:
        above = got == got and (self.min is None or got >= self.min)
        return above and (self.max is None or got <= self.max)

    def __str__(self) -> str:
        if self.min is None:
            return f"<= {self.max:g}"
        if self.max is None:
            return f">= {self.min:g}"
        return f"{self.min:g} to {self.max:g}"
