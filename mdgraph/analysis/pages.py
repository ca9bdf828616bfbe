"""Pages of results: one HTML file with tables and pictures in it, without links to others."""

import base64
import html
import io
from collections.abc import Sequence
from typing import Final

from matplotlib.figure import Figure

_STYLE: Final = (
    "body{font-family:sans-serif;max-width:62em;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;margin:.8em 0}"
    "td,th{padding:.25em .8em;border-bottom:1px solid #ddd;text-align:right;vertical-align:top}"
    "td:first-child,th:first-child,table.words td{text-align:left}"
    "img{max-width:100%}h2{border-top:1px solid #ddd;padding-top:.8em;font-size:1.15em}"
)


def html_page(title: str, parts: Sequence[str], style: str = "") -> str:
    """The text of a file with a heading and parts in HTML.

    Args:
        title: heading, in plain text.
        parts: below it, in HTML.
        style: CSS beside that of all pages.
    """
    body = "\n".join([f"<h1>{html.escape(title)}</h1>", *parts])
    return (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<meta name='viewport' content='width=device-width'><title>{html.escape(title)}</title>"
        f"<style>{_STYLE}{style}</style></head><body>\n{body}\n</body></html>\n"
    )


def html_table(rows: Sequence[Sequence[str]], *, header: bool = True) -> str:
    """A table of texts; the first row is its header, or all is in words."""
    lines = []
    for number, row in enumerate(rows):
        cell = "th" if header and number == 0 else "td"
        cells = "".join(f"<{cell}>{html.escape(text)}</{cell}>" for text in row)
        lines.append(f"<tr>{cells}</tr>")
    return f"<table{'' if header else ' class=words'}>{''.join(lines)}</table>"


def html_image(figure: Figure, words: str) -> str:
    """A figure as PNG within the page, and what it shows for those who do not see it."""
    content = base64.b64encode(png(figure)).decode()
    return f'<img alt="{html.escape(words)}" src="data:image/png;base64,{content}">'


def png(figure: Figure) -> bytes:
    """A figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()
