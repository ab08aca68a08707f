"""Adds the names of columns to the cells of tables.

On a narrow screen a row becomes a card, with these names on its lines.
"""

import re
from html import escape, unescape

_TABLE = re.compile(r"<table>(.*?)</table>", re.DOTALL)
_HEAD = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_ROW = re.compile(r"<tr>(.*?)</tr>", re.DOTALL)
_CELL = re.compile(r"<td\b")
_TAG = re.compile(r"<[^>]+>")


def labelled(html: str) -> str:
    """The page with each table in a block `cards`, and with `data-label` in each cell except the first of its row."""
    return _TABLE.sub(lambda found: f'<div class="cards"><table>{_labelled(found[1])}</table></div>', html)


def _labelled(table: str) -> str:
    names = [escape(unescape(_TAG.sub("", name)).strip()) for name in _HEAD.findall(table)]

    def of_row(row: re.Match[str]) -> str:
        columns = iter(names)
        return _CELL.sub(lambda cell: _named(cell[0], next(columns, "")), row[0])

    # The first cell is the card's title, so it needs no name.
    names[:1] = [""]
    return _ROW.sub(of_row, table)


def _named(cell: str, name: str) -> str:
    return f'{cell} data-label="{name}"' if name else cell
