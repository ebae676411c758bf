"""The options of methods that look the last tokens up in the text so far."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from trtspec.base.findings import Finding
from trtspec.methods.method import Method

LookupTokens = Annotated[int, Field(ge=1, le=64)]
LEAST = "The smallest number of last tokens that must match."


class LookupMethod(Method):
    """A method that proposes what followed the last tokens where they stood before."""

    prompt_lookup_min: LookupTokens = Field(default=2, description=LEAST)
    prompt_lookup_max: LookupTokens = Field(
        default=8,
        description="The largest number of last tokens that are looked up; the longest match counts.",
    )

    def contradictions(self) -> Iterator[Finding]:
        least, most = self.prompt_lookup_min, self.prompt_lookup_max
        if least > most:
            problem = f"{least} is more than prompt_lookup_max, which is {most}"
            yield Finding("prompt_lookup_min", problem, f"at most {most}")


class TenantLookupMethod(LookupMethod):
    """A method that can look tokens up in the earlier answers of a request's tenant too."""

    added = {"earlier_answers": None}  # noqa: RUF012
    earlier_answers: Annotated[int, Field(ge=1, le=10**6)] | None = Field(
        default=None,
        description="Look up this many tokens of earlier answers too, only for the tenant that got them; "
        "about 300 bytes each. None if left out.",
    )
