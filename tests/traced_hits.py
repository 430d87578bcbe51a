"""Traces every program that was found without a trace, and compares what the two compute.

    python -m pytest -p tests.traced_hits tests/contract

prints the number of programs that were found, and fails tests in which one of them is another program.
"""

from __future__ import annotations

import collections
from contextlib import contextmanager

import pytest

from tightrope.problems import compiling

COUNTS: collections.Counter[str] = collections.Counter()


@contextmanager
def every_hit_traced():
    """Within, a program that is found is traced too; yields the names of those that were found."""
    find, prepare, found = compiling.Program._find, compiling.Program._prepare, []

    def checked_find(self, described, definition, args, leaves):
        ready = find(self, described, definition, args, leaves)
        COUNTS["hits" if ready is not None else "misses"] += 1
        if ready is not None:
            _compare(self, *self._asked, described, definition, ready)
            found.append(getattr(self.fn, "__name__", None) or self.fn.func.__name__)
        return ready

    def noted_prepare(self, args, structure, leaves, places):
        self._asked = structure, leaves, places
        before = COUNTS["hits"] + COUNTS["misses"]
        ready = prepare(self, args, structure, leaves, places)
        del self._asked  # the data of the user
        COUNTS["without a definition"] += before == COUNTS["hits"] + COUNTS["misses"]
        return ready

    compiling.Program._find, compiling.Program._prepare = checked_find, noted_prepare
    try:
        yield found
    finally:
        compiling.Program._find, compiling.Program._prepare = find, prepare


def _compare(program, structure, leaves, places, described, definition, ready):
    known, _ = compiling._known.find(described, definition)
    traced = program._trace(structure, leaves, places)
    same = (
        traced.computes == known.computes,
        traced.structure == ready.structure,
        [(a.shape, a.dtype, a.weak_type) for a in traced.shapes]
        == [(a.shape, a.dtype, a.weak_type) for a in ready.shapes],
    )
    COUNTS["mismatches"] += not all(same)
    assert all(same), (program.fn, same)


@pytest.fixture(autouse=True)
def _every_hit_traced():
    with every_hit_traced():
        yield


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(f"programs: {dict(COUNTS)}")
