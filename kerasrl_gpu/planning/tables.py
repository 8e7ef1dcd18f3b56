"""Tables as text."""

from __future__ import annotations

import io

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table


def text(title: str, head: tuple, rows: list, ends: list) -> str:
    """A table without colours, its columns after the first two aligned to the right.

    Args:
        head: the columns' names.
        rows: tuples of text; one whose first part is the former row's leaves it blank.
        ends: rows below a line: the sums.
    """
    table = Table(title=title, title_justify="left", title_style="", box=SIMPLE_HEAD)
    for index, name in enumerate(head):
        table.add_column(name, justify="left" if index < 2 else "right", no_wrap=True)
    last = None
    for index, row in enumerate(rows):
        first = "" if row[0] == last else row[0]
        table.add_row(first, *row[1:], end_section=index == len(rows) - 1)
        last = row[0]
    for row in ends:
        table.add_row(*row)
    out = io.StringIO()
    # a fixed width: a table in a log file is read on another screen than it was printed for
    Console(file=out, width=160, color_system=None, force_terminal=False).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n")
