"""A Matplotlib figure that notebooks show, without pyplot."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

NOTEBOOK_DPI = 100


class ShownFigure(Figure):
    """A figure that is the last line of a cell is shown below it; pyplot, and its list of open figures, are not needed."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=NOTEBOOK_DPI)
        return file.getvalue()
