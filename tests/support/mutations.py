"""Damage to files: what disks, editors, programs and people do to them, drawn by hypothesis."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from hypothesis import strategies
from hypothesis.strategies import DataObject

Mutation = Callable[[DataObject, Path], None]
"""Changes a file, or the files of a folder, in place."""

HOSTILE_TOKENS = [
    *("nan", "inf", "-inf", "1e999", "-1", "0", "1e300", "999999999999", "1e12", "1.5", "0x10"),
    *("99999999999999999999", "1_000", "1,5", "None", "true", "false", "[]", "{}", '""', "'"),
    *("\\", "#", "*", "&", "!", "%", "@", "~", "\x00", "\x1b[31m", "\xe9", "\ufeff", "1j"),
    *("H", "X", "Xx", "T", "F"),
]

HOSTILE_VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1.5,
    10**9,
    10**30,
    1e300,
    float("nan"),
    float("inf"),
    "",
    "text",
    "\x1b[31m\n",
    "x" * 10_000,
    [],
    [1, 2],
    [[]] * 50,
    {},
    {"a": {"b": 1}},
)


def damaged_bytes(data: DataObject, path: Path) -> None:
    """Flips, cuts, inserts, repeats and overwrites bytes."""
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(strategies.sampled_from([1, 1, 1, 2, 3]))):
        if not content:
            break
        # What a parser stumbles over lies at the ends.
        place = data.draw(
            strategies.one_of(
                strategies.integers(0, len(content) - 1),
                strategies.integers(0, min(300, len(content) - 1)),
                strategies.integers(max(0, len(content) - 300), len(content) - 1),
            )
        )
        length = data.draw(strategies.sampled_from([1, 1, 4, 8, 100, 5000]))
        kind = data.draw(strategies.sampled_from(["flip", "set", "cut", "drop", "repeat", "add"]))
        if kind == "flip":
            content[place] ^= 1 << data.draw(strategies.integers(0, 7))
        elif kind == "set":
            value = data.draw(strategies.sampled_from([0, 0xFF, 0x7F, 0x80, 0x20, 0x0A, 0x5B]))
            content[place : place + length] = bytes([value]) * len(content[place : place + length])
        elif kind == "cut":
            del content[place:]
        elif kind == "drop":
            del content[place : place + length]
        elif kind == "repeat":
            content[place:place] = content[place : place + length]
        else:
            content[place:place] = data.draw(strategies.binary(min_size=1, max_size=8))
    path.write_bytes(content)


def damaged_text(data: DataObject, path: Path) -> None:
    """Changes words and lines of a text."""
    lines = path.read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    for _ in range(data.draw(strategies.sampled_from([1, 1, 1, 2, 3]))):
        row = data.draw(strategies.integers(0, len(lines) - 1))
        kind = data.draw(
            strategies.sampled_from(["word", "word", "word", "drop", "repeat", "swap", "many"])
        )
        if kind == "word":
            words = lines[row].split(" ")
            place = data.draw(strategies.integers(0, len(words) - 1))
            token = data.draw(strategies.sampled_from(HOSTILE_TOKENS))
            name, equals, _ = words[place].partition("=")
            kept = f"{name}=" if equals and data.draw(strategies.booleans()) else ""
            words[place] = kept + token
            lines[row] = " ".join(words)
        elif kind == "drop":
            del lines[row]
            lines = lines or [""]
        elif kind == "repeat":
            lines.insert(row, lines[row])
        elif kind == "swap":
            other = data.draw(strategies.integers(0, len(lines) - 1))
            lines[row], lines[other] = lines[other], lines[row]
        else:
            lines[row] = lines[row] * data.draw(strategies.sampled_from([2, 1000]))
    path.write_bytes("\n".join(lines).encode("utf-8", errors="surrogateescape"))


def damaged_tree(data: DataObject, tree: Any) -> Any:
    """Replaces, drops, renames or repeats one place of nested mappings and sequences."""
    places: list[tuple[Any, Any]] = []

    def visit(node: Any) -> None:
        pairs = node.items() if isinstance(node, dict) else enumerate(node)
        for key, value in list(pairs):
            places.append((node, key))
            if isinstance(value, dict | list):
                visit(value)

    visit(tree)
    node, key = data.draw(strategies.sampled_from(places))
    kind = data.draw(strategies.sampled_from(["value", "value", "value", "drop", "rename", "deep"]))
    if kind == "value":
        node[key] = data.draw(strategies.sampled_from(HOSTILE_VALUES))
    elif kind == "drop":
        del node[key]
    elif kind == "rename" and isinstance(node, dict):
        node["other"] = node.pop(key)
    else:
        value: Any = 0
        for _ in range(data.draw(strategies.sampled_from([3, 100]))):
            value = [value]
        node[key] = value
    return tree


def damaged_json(data: DataObject, path: Path) -> None:
    """Changes one value of a JSON file."""
    path.write_text(json.dumps(damaged_tree(data, json.loads(path.read_text()))))


def damaged_hdf5(data: DataObject, path: Path) -> None:
    """Replaces one array, group or attribute of an HDF5 file by another one."""
    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file.visit(names.append)
        name = data.draw(strategies.sampled_from(sorted(names)))
        kinds = [
            *("drop", "text", "complex", "group", "nan", "shape", "cut", "scalar", "empty"),
            *("external", "virtual", "outside", "soft", "huge", "compressed", "attribute", "cycle"),
        ]
        kind = data.draw(strategies.sampled_from(kinds))
        old = file[name]
        values = old[...] if isinstance(old, h5py.Dataset) else np.zeros((2, 3))
        if kind == "attribute":
            old.attrs["units"] = data.draw(strategies.sampled_from(["hartree", 5, "", [1.0, 2.0]]))
            for key in list(file.attrs):
                file.attrs[key] = data.draw(strategies.sampled_from(["x", -1, 99, [1, 2]]))
            return
        numeric = values.dtype.kind in "fiub"
        is_array = isinstance(old, h5py.Dataset)
        if kind == "nan" and is_array and values.dtype.kind == "f" and values.size:
            old[np.unravel_index(values.size // 2, values.shape) if values.ndim else ()] = np.nan
            return
        del file[name]
        if kind == "text":
            file[name] = np.full(values.shape, b"text", dtype="S8")
        elif kind == "complex" and numeric:
            file[name] = values.astype(complex) + 1j
        elif kind == "group":
            file.create_group(name)
        elif kind == "shape":
            file[name] = values[None] if numeric else np.zeros(3)
        elif kind == "cut" and values.ndim and numeric:
            file[name] = values[:-1]
        elif kind == "scalar":
            file[name] = 3.0
        elif kind == "empty":
            file[name] = h5py.Empty("f8")
        elif kind == "external":
            file[name] = h5py.ExternalLink("absent.h5", "/" + name)
        elif kind == "virtual" and numeric:
            layout = h5py.VirtualLayout(values.shape, values.dtype)
            if values.ndim:
                layout[...] = h5py.VirtualSource("absent.h5", name, shape=values.shape)
            file.create_virtual_dataset(name, layout)
        elif kind == "outside" and numeric and values.ndim and values.size:
            outside = path.with_suffix(".raw")
            values.tofile(outside)
            where = [(str(outside), 0, h5py.h5f.UNLIMITED)]
            file.create_dataset(name, values.shape, values.dtype, external=where)
        elif kind == "soft":
            file[name] = h5py.SoftLink("/nowhere")
        elif kind == "cycle":
            file[name] = file["/"]
        elif kind in ("huge", "compressed") and numeric:
            shape = (10**10, *values.shape[1:])
            packed = "gzip" if kind == "compressed" else None
            file.create_dataset(name, shape, values.dtype, chunks=True, compression=packed)


def damaged_archive(data: DataObject, path: Path) -> None:
    """Replaces one array of an .npz by another one."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    name = data.draw(strategies.sampled_from(sorted(arrays)))
    kinds = ["drop", "text", "complex", "nan", "shape", "object", "cut", "huge"]
    kind = data.draw(strategies.sampled_from(kinds))
    values = arrays[name]
    if kind == "drop":
        del arrays[name]
    elif kind == "text":
        arrays[name] = np.full(values.shape, "text")
    elif kind == "complex":
        arrays[name] = values.astype(complex) + 1j
    elif kind == "nan":
        arrays[name] = np.full(values.shape, np.nan)
    elif kind == "shape":
        arrays[name] = values[None]
    elif kind == "object":
        arrays[name] = np.array([{"a": 1}] * len(values), dtype=object)
    elif kind == "cut":
        arrays[name] = values[:-1]
    else:
        arrays[name] = np.zeros((300, *values.shape[1:], 1000))
    saved = np.savez_compressed if data.draw(strategies.booleans()) else np.savez
    with path.open("wb") as file:
        saved(file, **arrays)
