"""The sentences that the page on troubleshooting explains are those of the source."""

import ast
import re

import pytest
from repository import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
SENTENCES = re.findall(r'^\| "([^"]+)" \|', PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def texts() -> str:
    """All texts in the source, adjacent ones as one."""
    trees = (
        ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "mdgraph").rglob("*.py")
    )
    constants = (node.value for tree in trees for node in ast.walk(tree) if is_text(node))
    return "\n".join(constants)


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_there_are_sentences() -> None:
    assert len(SENTENCES) > 8


@pytest.mark.parametrize("sentence", SENTENCES)
def test_a_sentence_is_said(sentence: str, texts: str) -> None:
    assert sentence in texts


def test_a_sentence_that_nobody_says_would_be_found(texts: str) -> None:
    assert "The fast evaluator agrees with the reference" not in texts
