"""Builds the sites of several versions side by side, with a list of them for their sidebars.

    python docs/versions.py OUT REF...

builds each git ref (v0.2.0, main) in a worktree of its own, with its own source, into
OUT/VERSION/ (0.2.0, main). OUT/versions.json lists these and the versions that are there already,
the newest first, and OUT/index.html goes to the newest release.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.version import InvalidVersion, Version

LIST = "versions.json"


def git(*arguments: str | Path) -> str:
    """What git prints; raises CalledProcessError."""
    done = subprocess.run(["git", *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def version_of(ref: str) -> str:
    """The folder of a ref: a tag's without its v, no slashes."""
    return re.sub(r"\Av(?=\d)", "", ref).replace("/", "-")


def newest_first(versions: set[str]) -> list[str]:
    """Releases from the newest on, then versions before a release, then branches."""

    def rank(name: str) -> tuple[int, Version]:
        try:
            version = Version(name)
        except InvalidVersion:
            return 0, Version("0")
        return 1 if version.is_prerelease else 2, version

    return sorted(sorted(versions), key=rank, reverse=True)


def build(ref: str, target: Path) -> None:
    """Builds the site of a ref; replaces that in `target` once it is whole."""
    with tempfile.TemporaryDirectory() as folder:
        source, site = Path(folder, "source"), Path(folder, "site")
        git("worktree", "add", "--quiet", "--detach", source, ref)
        try:
            # The source of that version comes before the one that is installed.
            environment = os.environ | {"PYTHONPATH": str(source)}
            command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "--quiet"]
            subprocess.run(
                [*command, source / "docs", site], check=True, cwd=source, env=environment
            )
        finally:
            git("worktree", "remove", "--force", source)
        shutil.rmtree(site / ".doctrees", ignore_errors=True)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(site, target)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder of the sites")
    parser.add_argument("refs", metavar="ref", nargs="+", help="tags or branches")
    options = parser.parse_args()
    for ref in options.refs:
        try:
            git("cat-file", "-e", f"{ref}:docs/conf.py")
        except subprocess.CalledProcessError:
            sys.exit(f"{ref} is no ref of this repository that has a docs/conf.py.")
    options.out.mkdir(parents=True, exist_ok=True)
    listed = options.out / LIST
    versions = set(json.loads(listed.read_text("utf-8"))) if listed.exists() else set()
    for ref in options.refs:
        try:
            build(ref, options.out / version_of(ref))
        except subprocess.CalledProcessError:
            sys.exit(f"The site of {ref} did not build; {listed} lists those before it.")
        versions.add(version_of(ref))
        names = newest_first(versions)
        listed.write_text(json.dumps(names) + "\n", "utf-8")
        newest = f"{names[0]}/index.html"
        (options.out / "index.html").write_text(
            f'<!doctype html>\n<meta charset="utf-8">\n<title>{names[0]}</title>\n'
            f'<meta http-equiv="refresh" content="0; url={newest}">\n'
            f'<a href="{newest}">{names[0]}</a>\n',
            "utf-8",
        )


if __name__ == "__main__":
    main()
