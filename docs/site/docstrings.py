"""An extension of Griffe: the section that docstrings call "Example" is what Griffe calls "Examples", and shows as code."""

from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    """Renames the section in every docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rename it in the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
