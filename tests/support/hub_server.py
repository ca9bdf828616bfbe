"""A server on this machine that answers what huggingface_hub asks when it downloads files."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Hub:
    """Repositories by name, each a list of commits, which are files by path.

    Attributes:
        address: of the server.
        commits: (repository, commit) to its files, in the order in which they were pushed.
        gated: repositories that nobody may read.
        requests: method and path of everything that was asked for.
    """

    address: str = ""
    commits: dict[tuple[str, str], dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)

    def push(self, repository: str, files: dict[str, bytes]) -> str:
        """Adds a commit; returns its hash."""
        commit = hashlib.sha1(f"{repository} {len(self.commits)}".encode()).hexdigest()
        self.commits[repository, commit] = files
        return commit

    def commit(self, repository: str, revision: str) -> str | None:
        """The commit that a revision stands for, if there is one."""
        known = [commit for name, commit in self.commits if name == repository]
        if revision == "main":
            return known[-1]
        return revision if revision in known else None


class Handler(BaseHTTPRequestHandler):
    """Answers for the `hub` of the server's class that `serving` made."""

    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Says nothing."""

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        parts = path.strip("/").removeprefix("api/models/").split("/")
        repository, action, inside = "/".join(parts[:2]), parts[2:3], "/".join(parts[4:])
        if all(name != repository for name, _ in self.hub.commits):
            return self.refuse(404, "RepoNotFound")
        if repository in self.hub.gated:
            return self.refuse(403, "GatedRepo")
        commit = self.hub.commit(repository, parts[3] if parts[3:] else "main")
        if commit is None:
            return self.refuse(404, "RevisionNotFound")
        files = self.hub.commits[repository, commit]
        if action == ["tree"]:
            rows = [
                {"type": "file", "path": name, "size": len(content), "oid": self.oid(content)}
                for name, content in files.items()
            ]
            return self.send(json.dumps(rows).encode())
        if action == ["resolve"]:
            if inside not in files:
                return self.refuse(404, "EntryNotFound")
            headers = {"X-Repo-Commit": commit, "ETag": f'"{self.oid(files[inside])}"'}
            return self.send(files[inside], headers)
        siblings = [{"rfilename": name} for name in files]
        about = {"id": repository, "sha": commit, "siblings": siblings, "tags": []}
        return self.send(json.dumps(about).encode())

    @staticmethod
    def oid(content: bytes) -> str:
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    def refuse(self, status: int, code: str) -> None:
        self.send(b"", {"X-Error-Code": code, "X-Error-Message": code}, status)

    def send(
        self, content: bytes, headers: dict[str, str] | None = None, status: int = 200
    ) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


@contextmanager
def serving() -> Iterator[Hub]:
    """An empty Hub, for as long as the context lasts."""
    hub = Hub()
    handler = type("OwnHandler", (Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        hub.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
