"""How pictures of results look, and pages: one HTML file with tables and pictures in it."""

import base64
import html
import io
from collections.abc import Sequence
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

BLUE: Final = "#0072B2"
ORANGE: Final = "#D55E00"
GREEN: Final = "#009E73"
GREY: Final = "#6E6E6E"
COLOURS: Final = (BLUE, ORANGE, GREEN, "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Told apart by people who see fewer colours (DOI 10.1038/nmeth.1618)."""

LINE: Final[dict[str, Any]] = {"linewidth": 1.4, "solid_joinstyle": "round"}


def blank_figure(
    width: float, height: float, title: str, subtitle: str, *, makes_room: bool = True
) -> Figure:
    """A figure in inches with a title and a smaller line under it.

    Args:
        width: in inches.
        height: in inches.
        title: in the first 0.3 inches.
        subtitle: in the next 0.2 inches.
        makes_room: for labels, wherever they are; else axes stay where they are put.
    """
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08) if makes_room else None
    figure = Figure(figsize=(width, height), dpi=150, layout=layout)
    FigureCanvasAgg(figure)
    place = {} if makes_room else {"y": 1.0 - 0.1 / height}
    figure.suptitle(f"{title}\n", fontsize=13, fontweight="bold", **place)
    figure.text(
        0.5, 1.0 - 0.39 / height, subtitle, ha="center", va="center", fontsize=9.5, color=GREY
    )
    return figure


def dress(*drawn: Axes) -> None:
    """Takes the frame off and lays a faint grid under what is drawn."""
    for axes in drawn:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#E6E6E6", linewidth=0.8)
        axes.set_axisbelow(True)


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
    figure.set_dpi(110)
    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer)  # `savefig` would draw all twice
    return buffer.getvalue()
