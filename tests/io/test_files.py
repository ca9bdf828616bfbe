"""Files appear whole or not at all, and grow by whole records."""

import errno
import os
from pathlib import Path

import pytest

from mdgraph.errors import FileError
from mdgraph.io.files import AppendedFile, disk_failure, write_atomically


def fail_with(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class TestWriteAtomically:
    def test_the_file_appears_with_its_suffix_in_its_folder(self, tmp_path: Path) -> None:
        target = tmp_path / "picture.png"
        seen: list[Path] = []

        def write(path: Path) -> None:
            seen.append(path)
            path.write_bytes(b"new")
            assert not target.exists()

        write_atomically(target, write)
        assert target.read_bytes() == b"new"
        assert seen[0].parent == tmp_path
        assert seen[0].suffix == ".png"
        assert list(tmp_path.iterdir()) == [target]

    def test_the_mode_of_the_file_is_the_usual_one(self, tmp_path: Path) -> None:
        (tmp_path / "usual").write_bytes(b"")
        write_atomically(tmp_path / "file", lambda path: path.write_bytes(b""))
        assert (tmp_path / "file").stat().st_mode == (tmp_path / "usual").stat().st_mode

    def test_a_pipe_is_not_replaced(self, tmp_path: Path) -> None:
        pipe = tmp_path / "pipe"
        os.mkfifo(pipe)
        with pytest.raises(FileError, match="pipe: it is not a regular file; give another name"):
            write_atomically(pipe, lambda path: path.write_bytes(b"new"))
        assert pipe.is_fifo()
        assert list(tmp_path.iterdir()) == [pipe]

    @pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
    def test_what_stops_the_writer_leaves_the_old_file(
        self, tmp_path: Path, error: type[BaseException]
    ) -> None:
        target = tmp_path / "file"
        target.write_bytes(b"old")

        def write(path: Path) -> None:
            path.write_bytes(b"half")
            raise error

        with pytest.raises(error):
            write_atomically(target, write)
        assert target.read_bytes() == b"old"
        assert list(tmp_path.iterdir()) == [target]

    @pytest.mark.parametrize("function", ["fsync", "replace"])
    def test_a_full_disk_leaves_the_old_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
    ) -> None:
        target = tmp_path / "file"
        target.write_bytes(b"old")

        def refuse(*arguments: object) -> None:
            raise fail_with(errno.ENOSPC)

        monkeypatch.setattr(os, function, refuse)
        with pytest.raises(FileError, match=r"Cannot write .*file: the disk is full; free"):
            write_atomically(target, lambda path: path.write_bytes(b"new"))
        assert target.read_bytes() == b"old"
        assert list(tmp_path.iterdir()) == [target]

    def test_a_device_without_space(self) -> None:
        def write(path: Path) -> None:
            with Path("/dev/full").open("wb", buffering=0) as file:
                file.write(b"1")

        with pytest.raises(FileError, match="the disk is full"):
            write_atomically(Path("/tmp") / "never", write)

    def test_the_content_is_on_the_disk_before_the_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        events: list[str] = []
        fsync, replace = os.fsync, os.replace
        monkeypatch.setattr(os, "fsync", lambda fd: (events.append("sync"), fsync(fd)))
        monkeypatch.setattr(os, "replace", lambda a, b: (events.append("name"), replace(a, b)))
        write_atomically(tmp_path / "file", lambda path: path.write_bytes(b"new"))
        assert events == ["sync", "name", "sync"]

    def test_a_symbolic_link_stays_one(self, tmp_path: Path) -> None:
        target, link = tmp_path / "target", tmp_path / "link"
        target.write_bytes(b"old")
        link.symlink_to(target)
        write_atomically(link, lambda path: path.write_bytes(b"new"))
        assert link.is_symlink()
        assert target.read_bytes() == b"new"

    def test_places_where_no_file_can_be(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        for place, reason in (
            (tmp_path / "absent" / "file", "no such file or folder"),
            (tmp_path / "file" / "file", "not a folder"),
            (tmp_path, "it is a folder"),
        ):
            with pytest.raises(FileError, match=reason):
                write_atomically(place, lambda path: path.write_bytes(b"new"))
        assert [path.name for path in tmp_path.iterdir()] == ["file"]


class TestAppendedFile:
    def test_records_are_there_at_once(self, tmp_path: Path) -> None:
        with AppendedFile(tmp_path / "file", 0) as file:
            file.append(b"one\n")
            file.append(b"two\n")
            assert file.path.read_bytes() == b"one\ntwo\n"

    def test_going_on_after_some_bytes(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"one\ntwo\nth")
        with AppendedFile(path, 4) as file:
            file.append(b"2\n")
        assert path.read_bytes() == b"one\n2\n"

    @pytest.mark.parametrize("error", [fail_with(errno.ENOSPC), KeyboardInterrupt()])
    def test_half_a_record_is_taken_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
    ) -> None:
        pwrite = os.pwrite
        calls = 0

        def write_half_then_fail(descriptor: int, data: bytes, offset: int) -> int:
            nonlocal calls
            calls += 1
            if calls == 2:
                raise error
            return pwrite(descriptor, data[: len(data) // 2], offset)

        with AppendedFile(tmp_path / "file", 0) as file:
            file.append(b"whole record\n")
            monkeypatch.setattr(os, "pwrite", write_half_then_fail)
            expected = FileError if isinstance(error, OSError) else KeyboardInterrupt
            with pytest.raises(expected):
                file.append(b"lost record\n")
            assert calls == 2
            assert file.path.read_bytes() == b"whole record\n"
            monkeypatch.undo()
            file.append(b"next record\n")
        assert file.path.read_bytes() == b"whole record\nnext record\n"

    def test_closing_twice(self, tmp_path: Path) -> None:
        file = AppendedFile(tmp_path / "file", 0)
        file.close()
        file.close()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EACCES, "permission is denied"),
        (errno.EROFS, "read-only"),
        (errno.EDQUOT, "quota is used up"),
        (errno.EIO, os.strerror(errno.EIO)),
    ],
)
def test_every_refusal_is_one_sentence(number: int, words: str) -> None:
    sentence = str(disk_failure(Path("/some/file"), "write", fail_with(number)))
    assert sentence.startswith("Cannot write /some/file: ")
    assert words in sentence
    assert sentence.endswith(".")
