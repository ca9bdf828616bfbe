"""`mdgraph config`: files of options that the commands read back, and their JSON schemas."""

import json
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from mdgraph.distil.config import DistilConfig
from mdgraph.runs.config import EvalConfig, MDConfig, MinimizeConfig, RelaxConfig
from mdgraph.runs.config_files import read_configuration
from mdgraph.runs.protocol import read_protocol
from mdgraph.runs.training import read_training
from mdgraph.train.config import TrainConfig

Run = Callable[..., Any]

DEFAULTS: dict[str, BaseModel] = {
    "md": MDConfig(),
    "minimise": MinimizeConfig(),
    "eval": EvalConfig(structures=("frames.extxyz",)),
    "relax": RelaxConfig(structures=("frames.extxyz",)),
    "train": TrainConfig(data="frames.h5", out="my-potential", steps=20000),
    "distil": DistilConfig(
        teacher=("large-potential",),
        structures=("structures.extxyz",),
        out="my-potential",
        steps=20000,
    ),
}


def switched_on(text: str) -> str:
    """The file with every key switched on."""
    return re.sub(r"^#(?=\w+:|  )", "", text, flags=re.MULTILINE)


def nested_keys(values: Any) -> Any:
    if not isinstance(values, dict):
        return None
    return {key: nested_keys(value) for key, value in values.items()}


def read(command: str, path: Path) -> BaseModel:
    if command == "train":
        return read_training(path, {})
    if command == "distil":
        from mdgraph.runs import training

        return training._read(DistilConfig, path, {})
    return read_configuration(type(DEFAULTS[command]), path)  # type: ignore[type-var]


@pytest.mark.parametrize("command", DEFAULTS)
def test_files_are_read_back_to_the_defaults(
    command: str, tmp_path: Path, mdgraph_command: Run
) -> None:
    done = mdgraph_command("config", command)
    assert (done.status, done.err) == (0, "")
    path, default = tmp_path / "options.yaml", DEFAULTS[command].model_dump()
    for text in (done.out, switched_on(done.out)):
        path.write_text(text)
        assert read(command, path).model_dump() == default
    values = yaml.safe_load(switched_on(done.out))
    assert nested_keys(values) == nested_keys(DEFAULTS[command].model_dump(mode="json"))
    lines = [line.strip() for line in switched_on(done.out).splitlines()]
    for before, line in pairwise(lines):
        if line and not line.startswith("#"):
            assert before.startswith("# "), f"{line} has no comment"
            assert not before.startswith("# ---"), f"{line} has no comment"


def test_a_switched_on_key_is_taken(tmp_path: Path, mdgraph_command: Run) -> None:
    text = mdgraph_command("config", "md").out
    path = tmp_path / "run.yaml"
    path.write_text(text.replace("#temperature_K: 300.0", "temperature_K: 450"))
    assert read_configuration(MDConfig, path) == MDConfig(temperature_K=450.0)
    values = yaml.safe_load(switched_on(mdgraph_command("config", "train").out))
    assert values["loss"]["forces"]["kind"] == "norm"


def test_the_stages_of_a_protocol_have_the_defaults(tmp_path: Path, mdgraph_command: Run) -> None:
    text = mdgraph_command("config", "protocol").out
    path = tmp_path / "protocol.yaml"
    for written in (text, switched_on(text)):
        path.write_text(written)
        first, second = (stage.configuration for stage in read_protocol(path, None, tmp_path))
        own = {"out": first.out}
        assert first.model_dump() == MinimizeConfig().model_dump() | own
        own = {"out": second.out, "seed": 1}
        assert second.model_dump() == MDConfig().model_dump() | own
    keys = yaml.safe_load(switched_on(text)).keys()
    fields = MDConfig.model_fields.keys() | MinimizeConfig.model_fields
    assert keys == fields - {"structure", "out"} | {"stages"}


@pytest.mark.parametrize("command", [*DEFAULTS, "protocol"])
def test_schemas_have_every_key(command: str, mdgraph_command: Run) -> None:
    schema = json.loads(mdgraph_command("config", command, "--schema").out)
    assert schema["additionalProperties"] is False
    properties = schema["properties"]
    values = yaml.safe_load(switched_on(mdgraph_command("config", command).out))
    assert properties.keys() == values.keys()
    if command == "protocol":
        stage = properties["stages"]["items"]["properties"]
        assert stage.keys() == properties.keys() - {"stages"} | {"name", "run"}
    if command in ("md", "protocol"):
        assert "npt-mtk" in properties["ensemble"]["enum"]
        assert {"type": "number"} in properties["temperature_K"]["anyOf"]
        assert {"type": "integer"} in properties["fix"]["anyOf"]
    if command in ("md", "minimise"):
        assert {"type": "string"} in properties["structure"]["anyOf"]
    if command in ("train", "distil"):
        assert {"type": "string"} in properties["baseline"]["anyOf"]
        assert "perturbation" in schema["$defs"]["LossConfig"]["properties"]
