"""What comes from outside: which files are read at all, and what of them a terminal shows."""

import bz2
import gzip
import lzma
import os
import socket
from pathlib import Path

import pytest

from mdgraph.errors import CapacityError, FileError, printable
from mdgraph.host_memory import available_host_memory, check_fits
from mdgraph.io import files
from mdgraph.io.files import read_decompressed, read_file, readable_file


class TestReadableFiles:
    def test_a_file_is_read(self, tmp_path: Path) -> None:
        path = tmp_path / "Zelle 1 ü.xyz"
        path.write_bytes(b"12345")
        (tmp_path / "link").symlink_to(path)
        assert readable_file(path, "a structure", 5) == path
        assert readable_file(str(path), "a structure") == path
        assert read_file(tmp_path / "link", "a structure", 5) == b"12345"

    def test_a_file_beyond_the_bound_is_not_read(self, tmp_path: Path) -> None:
        path = tmp_path / "large.yaml"
        path.touch()
        os.truncate(path, 10**12)
        with pytest.raises(FileError, match="it has 1,000 GB, where a list has at most 4 MB"):
            read_file(path, "a list", 4_000_000)

    @pytest.mark.parametrize("name", ["/proc/self/status", "/proc/cpuinfo"])
    def test_a_file_that_hides_its_size_is_bounded(self, name: str) -> None:
        assert read_file(name, "a list", 1_000_000)
        with pytest.raises(FileError, match="it has more, where a list has at most 10 bytes"):
            read_file(name, "a list", 10)

    def test_what_is_no_file_is_refused_at_once(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with socket.socket(socket.AF_UNIX) as endpoint:
            endpoint.bind(os.path.relpath(tmp_path / "socket"))
        cases = {
            tmp_path / "pipe": "it is a pipe, no file; give the name of a file that holds a cell",
            tmp_path / "socket": "it is a socket, no file",
            tmp_path: "it is a folder, no file",
            "/dev/zero": "it is a device, no file",
            "/dev/null": "it is a device, no file",
            tmp_path / "absent": "there is no such file or folder; check the name",
            tmp_path / ("n" * 300): "its name, or a part of its path, is too long",
            "/".join(["n" * 200] * 30): "too long; choose a shorter one",
            tmp_path / "a\0b": "no file can have that name",
            tmp_path / "a\ud800b": "no file can have that name",
            tmp_path / "ring": "symbolic links go round in a circle",
        }
        (tmp_path / "ring").symlink_to(tmp_path / "ring")
        for path, reason in cases.items():
            with pytest.raises(FileError, match=reason) as caught:
                readable_file(path, "a cell")
            assert str(caught.value).isprintable()
            assert len(str(caught.value)) < 800

    @pytest.mark.parametrize(
        ("suffix", "compress"),
        [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), ("", bytes)],
    )
    def test_an_archive_is_bounded_by_what_it_holds(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, compress: object
    ) -> None:
        monkeypatch.setattr(files, "_SMALL", 100_000)
        sound, bomb = (tmp_path / f"{name}.xyz{suffix}" for name in ("sound", "bomb"))
        sound.write_bytes(compress(b"a line\n" * 10_000))  # type: ignore[operator]
        bomb.write_bytes(compress(bytes(10_000_000)))  # type: ignore[operator]
        assert read_decompressed(sound, "a structure", 10**6) == b"a line\n" * 10_000
        with pytest.raises(FileError, match=r"it unpacks to more than|it has 10 MB, where"):
            read_decompressed(bomb, "a structure", 10**6)

    @pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
    def test_a_damaged_archive_is_said_to_be_one(self, tmp_path: Path, suffix: str) -> None:
        compress = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}[suffix]
        whole = compress(os.urandom(10_000))
        path = tmp_path / f"a.xyz{suffix}"
        for content in (b"", b"no archive", whole[:-100], whole[:5000] + b"??" + whole[5002:]):
            path.write_bytes(content)
            if content:
                with pytest.raises(FileError, match=f"it is not a complete {suffix[1:]} archive"):
                    read_decompressed(path, "a structure", 10**6)


class TestPrintable:
    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("a plain ü 水 word", "a plain ü 水 word"),
            ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
            ("two\nlines\r\t", "two\\nlines\\r\\t"),
            ("\u202eevil\u2066 \u2028 \ufeff\x9b", "\\u202eevil\\u2066 \\u2028 \\ufeff\\x9b"),
            ("\udcff \ud800", "\\xff \\ud800"),
            ("\x00\x7f", "\\x00\\x7f"),
            (12, "12"),
        ],
    )
    def test_nothing_reaches_a_terminal_raw(self, text: object, shown: str) -> None:
        assert printable(text) == shown

    def test_a_long_text_loses_its_middle(self) -> None:
        assert printable("a" * 50 + "b" * 50, 10) == "aaaaa … bbbbb"
        assert len(printable("a" * 10**7)) < 4000


class TestMemory:
    def test_what_fits_is_not_refused(self) -> None:
        check_fits(available_host_memory() // 2, available_host_memory(), "A run", "take less")
        check_fits(100, 100, "A run", "take less")

    def test_what_does_not_fit_is_refused_with_both_figures(self) -> None:
        with pytest.raises(CapacityError) as caught:
            check_fits(12_340_000_000, 5 * 10**8, "30000 replicas", "take fewer")
        assert str(caught.value) == (
            "30000 replicas would take about 12.3 GB of memory, and 0.5 GB are free; take fewer."
        )
        with pytest.raises(CapacityError, match=r"about 2e\+15 GB"):
            check_fits(2 * 10**24, 10**9, "A box", "take less")
