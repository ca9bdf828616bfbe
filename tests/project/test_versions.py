"""Sites of several versions side by side, of a small repository."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from repository import ROOT

SPHINX = '''
"""Stands in for Sphinx, which the tests need not have: writes the version and what is imported."""
import sys
from pathlib import Path

import small

source, site = map(Path, sys.argv[-2:])
site.mkdir()
(site / ".doctrees").mkdir()
(site / "index.html").write_text(small.__version__ + Path(source, "conf.py").read_text())
sys.exit(small.__version__ == "broken")
'''


def git(folder: Path, *arguments: str) -> str:
    own = ["-c", "user.name=Tester", "-c", "user.email=tester@example.org"]
    command = ["git", *own, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def commit(folder: Path, files: dict[str, str], *tags: str) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "Files")
    for tag in tags:
        git(folder, "tag", tag)


def build(folder: Path, *refs: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "docs" / "versions.py", folder.parent / "sites", *refs]
    own = os.environ | {"PYTHONPATH": ""}
    return subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, env=own)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A repository with tags of four versions, one of them without documents."""
    folder = tmp_path / "small"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(folder, {"small.py": "__version__ = '0.1'\n"}, "v0.1")
    stand_in = {"sphinx/__init__.py": "", "sphinx/__main__.py": SPHINX}
    first = {"small.py": "__version__ = '0.9'\n", "docs/conf.py": "# conf\n", **stand_in}
    commit(folder, first, "v0.9")
    for version in ("0.10", "1.0rc1"):
        commit(folder, {"small.py": f"__version__ = '{version}'\n"}, f"v{version}")
    commit(folder, {"small.py": "__version__ = 'next'\n"})
    return folder


def test_each_is_built_from_its_own_source_and_the_newest_release_comes_first(small: Path) -> None:
    sites = small.parent / "sites"
    done = build(small, "main", "v0.9")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads((sites / "versions.json").read_text()) == ["0.9", "main"]
    done = build(small, "v1.0rc1", "v0.10")
    assert (done.returncode, done.stderr) == (0, "")
    names = ["0.10", "0.9", "1.0rc1", "main"]
    assert json.loads((sites / "versions.json").read_text()) == names
    assert sorted(path.name for path in sites.iterdir()) == sorted(
        [*names, "versions.json", "index.html"]
    )
    assert "url=0.10/index.html" in (sites / "index.html").read_text()
    for name in names:
        own = "next" if name == "main" else name
        assert (sites / name / "index.html").read_text() == f"{own}# conf\n"
        assert not (sites / name / ".doctrees").exists()
    assert len(git(small, "worktree", "list").splitlines()) == 1


def test_a_site_that_does_not_build_leaves_the_one_before(small: Path) -> None:
    sites = small.parent / "sites"
    assert build(small, "main").returncode == 0
    for ref in ("v0.1", "v7"):
        done = build(small, ref, "v0.9")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"{ref} is no ref of this repository that has a docs/conf.py.\n"
        assert not (sites / "0.9").exists()
    commit(small, {"small.py": "__version__ = 'broken'\n"})
    done = build(small, "v0.9", "main")
    assert done.returncode == 1
    assert "The site of main did not build" in done.stderr
    assert (sites / "main" / "index.html").read_text() == "next# conf\n"
    assert json.loads((sites / "versions.json").read_text()) == ["0.9", "main"]
    assert len(git(small, "worktree", "list").splitlines()) == 1


SIDEBAR = """
const location = {href: process.argv[2]};
const element = () => ({children: [], hidden: true, append(item) { this.children.push(item); }});
const list = element(), nav = Object.assign(element(), {querySelector: () => list});
const document = {getElementById: () => nav, createElement: element};
const fetch = async (path) => {
  if (process.argv[3] === "none") throw new Error("no such file");
  const there = new URL(path, location.href).pathname === "/docs/versions.json";
  return {ok: there, json: async () => JSON.parse(process.argv[3])};
};
setTimeout(() => console.log(JSON.stringify([nav.hidden, list.children.map(
  (item) => [item.className, item.children[0].textContent, item.children[0].href])])), 100);
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize("page", ["index.html", "reference/api/index.html"])
def test_the_sidebar_lists_them_where_they_are(page: str, tmp_path: Path) -> None:
    template = ROOT / "docs" / "_templates" / "sidebar" / "variant-selector.html"
    script = template.read_text(encoding="utf-8").partition("<script>")[2].partition("</script>")[0]
    up = "../" * page.count("/") or "./"
    path = tmp_path / "sidebar.js"
    path.write_text(SIDEBAR + script.replace("{{ content_root }}", up), encoding="utf-8")
    address = f"https://example.org/docs/0.2.0/{page}"

    def shown(versions: str) -> list[object]:
        command = ["node", str(path), address, versions]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return list(json.loads(done.stdout))

    assert shown('["0.2.0", "main"]') == [
        False,
        [
            ["toctree-l1 current-page", "0.2.0", "https://example.org/docs/0.2.0/index.html"],
            ["toctree-l1", "main", "https://example.org/docs/main/index.html"],
        ],
    ]
    assert shown("none") == [True, []]
