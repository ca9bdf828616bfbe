"""Options and configurations: what cannot be meant is refused in a sentence, what can be runs."""

import time
from pathlib import Path
from typing import Any

import pytest

from mdgraph.errors import FileError, InputError, MDGraphError
from mdgraph.runs import config_files
from mdgraph.runs.config import EvalConfig, MDConfig, RelaxConfig
from mdgraph.runs.config_files import read_configuration
from mdgraph.runs.evaluation import evaluate

NPT: dict[str, Any] = {"ensemble": "npt"}
BOMB = b"a: &a [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (98 + i, 98 + i, b",".join([b"*%c" % (97 + i)] * 9)) for i in range(9)
)


def read_yaml(folder: Path, content: bytes) -> MDConfig:
    path = folder / "run.yaml"
    path.write_bytes(content)
    return read_configuration(MDConfig, path)


class TestYAML:
    @pytest.mark.parametrize(
        ("content", "sentence"),
        [
            (b"fix: &a [*a]", "line 1: this is not YAML (a value is part of itself)"),
            (b"fix: &a {x: *a}", "a value is part of itself"),
            (b"fix: " + b"[" * 20_000, "lists within lists, more than 32 deep"),
            (b"{a: " * 20_000, "lists within lists, more than 32 deep"),
            (BOMB, "aliases make it more than 1,000 values"),
            (b"fix: [" + b"1," * 2_000 + b"]", "more than 1,000 values"),
            (b"#" * 5_000_000, "it has 5 MB, where a configuration has at most 4.19 MB"),
            (b"steps: 1\nseed: 2\nsteps: 3", "line 3: steps is given twice"),
            (b"fix: {a: 1, a: 2}", "line 1: a is given twice"),
            (b"[1, 2]: 3", "a key is not a word"),
            (b"steps: !!int abc", "this is not a value of its tag"),
            (b"steps: !!timestamp x", "this is not a value of its tag"),
            (b"steps: !!python/object/apply:os.getcwd []", "this is not YAML"),
            (b"seed: 2001-99-99", "seed is 2001-99-99; it should be a valid integer"),
            (b"steps: " + b"9" * 5000, "line 1: steps is 999"),
            (b"steps: 3\0", "holds bytes of zero"),
            (b'steps: "\x1b[31m"', "it holds a control character (U+001B)"),
            (b'steps: "\\e[31m"', "steps is \\x1b[31m; it should be a valid integer"),
            ("steps: 3".encode("utf-16"), "its text is UTF-16; save it as UTF-8"),
            (b"\tsteps: 3", "line 1: this is not YAML"),
            (b"a: 1\n---\nb: 2", "line 2: this is not YAML"),
            (b"steps: yes", "line 1: steps is True; it should be a number, and yes, no, on"),
            (b"temperature_K: off", "temperature_K is False; it should be a number"),
            (b"structure: 5", "it should be the name of a file, or a list of such"),
        ],
    )
    def test_what_cannot_be_is_refused_soon(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, sentence: str
    ) -> None:
        monkeypatch.setattr(config_files, "_MOST_VALUES", 1000)
        begin = time.process_time()
        with pytest.raises(MDGraphError) as caught:
            read_yaml(tmp_path, content)
        assert time.process_time() - begin < 10.0
        assert sentence in str(caught.value)
        assert "run.yaml" in str(caught.value)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 1000

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            (b"", {}),
            (b"# nothing\n", {}),
            (b"\xef\xbb\xbfsteps: 3\r\nseed: 4\r\n", {"steps": 3, "seed": 4}),
            (b"steps: &n 5\nseed: *n\n", {"steps": 5, "seed": 5}),
            (b"steps: 1_000", {"steps": 1000}),
            (b"steps: 0100", {"steps": 100}),
            (b"temperature_K: 300:50", {"temperature_K": "300:50"}),
            (b"temperature_K: 3.0e+2", {"temperature_K": 300.0}),
            (b"graph: on\nminimize: yes", {"graph": "on", "minimize": True}),
            (b"fix: [0, 3-8, O]", {"fix": "0,3-8,O"}),
            (b"fix: index 0:9 or prop z < 5", {"fix": "index 0:9 or prop z < 5"}),
            (b"restrain: not (element O)", {"restrain": "not (element O)"}),
            (b'fix: "' + b",".join(b"%d" % i for i in range(50_000)) + b'"', {}),
            ("structure: Zelle_ü.xyz".encode("latin-1"), {"structure": ("Zelle_ü.xyz",)}),
        ],
    )
    def test_what_is_sound_is_read(
        self, tmp_path: Path, content: bytes, expected: dict[str, Any]
    ) -> None:
        configuration = read_yaml(tmp_path, content)
        assert {name: getattr(configuration, name) for name in expected} == expected

    def test_a_device_is_not_read(self) -> None:
        with pytest.raises(FileError, match="/dev/zero: it is a device"):
            read_configuration(MDConfig, Path("/dev/zero"))


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        (MDConfig, {"temperature_K": "1e9"}, "it should be at most 1,000,000"),
        (MDConfig, {"temperature_K": "1e308"}, "it should be at most 1,000,000"),
        (MDConfig, {"temperature_K": "300:1e7"}, "it should be at most 1,000,000"),
        (MDConfig, {"temperature_K": "nan"}, "it should be a finite number"),
        (MDConfig, {"temperatures_K": "300:1e9", "replicas": "4"}, "at most 1,000,000"),
        (MDConfig, NPT | {"pressure_bar": "1e30"}, "at most 1,000,000,000 either way"),
        (MDConfig, NPT | {"pressure_bar": "-1e30"}, "at most 1,000,000,000 either way"),
        (RelaxConfig, {"pressure_bar": "1e30", "coupling": "full"}, "less than or equal"),
        (RelaxConfig, {"pressure_bar": 1.0}, "--pressure-bar needs a cell that varies"),
        (RelaxConfig, {"stress_tolerance_bar": 5.0}, "--stress-tolerance-bar needs a cell that"),
        (MDConfig, {"skin_A": "300"}, "less than or equal to 20"),
        (MDConfig, {"time_ps": "1e-9"}, "less than half a time step of 0.5 fs"),
        (MDConfig, {"time_ps": "1e300"}, "--time-ps is more than 1e+15 steps"),
        (MDConfig, {"timestep_fs": "1e-300"}, "at least 1e-06"),
        (MDConfig, {"timestep_fs": "0"}, "greater than 0"),
        (MDConfig, {"seed": "-1"}, "greater than or equal to 0"),
        (MDConfig, {"steps": "9" * 30}, "less than or equal to"),
        (MDConfig, {"steps": "9" * 5000}, "--steps is 999"),
        (MDConfig, {"replicas": "1" + "0" * 30}, "less than or equal to"),
        (MDConfig, {"trajectory_interval": "1" + "0" * 30}, "less than or equal to"),
        (MDConfig, {"charge": "1e30"}, "less than or equal to"),
        (MDConfig, {"coulomb_cutoff_A": "1e9"}, "coulomb-cutoff-A"),
        (MDConfig, {"friction_per_ps": "inf"}, "finite"),
        (MDConfig, {"hydrogen_mass_amu": "1e9"}, "less than or equal to 100"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    kind: type[MDConfig], options: dict[str, Any], sentence: str
) -> None:
    if kind is RelaxConfig:
        options = options | {"structures": ["a.xyz"]}
    with pytest.raises(InputError) as caught:
        read_configuration(kind, None, options)
    assert sentence in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "options",
    [
        {"temperature_K": "0"},
        {"temperature_K": "1e5"},
        {"temperature_K": "300:50", "ramp_steps": "10"},
        NPT | {"pressure_bar": "-5000"},
        NPT | {"pressure_bar": "1e7"},
        {"skin_A": "0"},
        {"skin_A": "10"},
        {"time_ps": "0"},
        {"time_ps": "1e6"},
        {"timestep_fs": "0.01"},
        {"seed": str(2**63 - 1)},
        {"replicas": "30000"},
        {"maximum_temperature_K": "1e12"},
        {"charge": "-3.5"},
        {"coulomb_cutoff_A": "all-pairs"},
        {"friction_per_ps": "1e-3"},
        {"steps": "1000000000000"},
    ],
)
def test_what_may_be_meant_is_taken(options: dict[str, Any]) -> None:
    read_configuration(MDConfig, None, options)


@pytest.mark.parametrize("name", ["e.pdb", "e.csv", "e.h5", "e.xyz.gz"])
def test_no_other_format_is_written_under_its_name(tmp_path: Path, name: str) -> None:
    configuration = EvalConfig(structures=("absent.xyz",), out=str(tmp_path / name))
    with pytest.raises(InputError, match=r"extended XYZ is written; end the name in \.extxyz"):
        evaluate(configuration)
    assert list(tmp_path.iterdir()) == []
