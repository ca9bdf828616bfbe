"""Several potentials instead of one."""

from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, model_validator

from mdgraph.runs.fields import Committee


class CommitteeConfig(BaseModel):
    """Several potentials instead of one."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    committee: Committee | None = None
    """Two potentials or more, or the folder of such; the spread among them is looked at."""

    @model_validator(mode="before")
    @classmethod
    def _the_first_leads(cls, values: Any) -> Any:
        committee = values.get("committee")
        if committee is None or "potential" in values:
            return values
        members = TypeAdapter(Committee).validate_python(committee)
        return {**values, "committee": members, "potential": members[0]}
