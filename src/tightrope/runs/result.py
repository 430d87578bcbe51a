"""The Result of a run: the answer, its certificate, and how it was found; prints as a table, saves without pickle."""

from __future__ import annotations

import json
import math
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, PyTree

from ..arguments import check_type, did_you_mean
from ..certificates.certificate import Certificate, Estimate, gap_text, stationarity_text, violation_text
from ..certificates.promise import Promise
from ..figures import Against
from ..problems.model_state import WithState
from ..tables import Table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

FORMAT = 1
"""The version of the files that results are saved in; one of another version is refused."""

Status = Literal["converged", "budget", "interrupted", "diverged", "infeasible", "unbounded", "data_error"]


class History(Mapping[str, Float[np.ndarray, " records"]]):
    """The records of a run: a mapping from column names to arrays, with one entry per record.

    Values are those of the iterate at that step. `len` is the number of columns, as for every mapping; `records` is the
    number of records.

    Example:
        >>> import tightrope as tr
        >>> history = tr.History({"step": [0, 10], "objective": [3.0, 1.0]})
        >>> history["objective"], history.records, list(history)
        (array([3., 1.]), 2, ['step', 'objective'])
    """

    def __init__(self, columns: Mapping[str, Any]):
        self._columns = {name: np.asarray(values) for name, values in columns.items()}

    def __getitem__(self, name: str) -> Float[np.ndarray, " records"]:
        if name not in self._columns:
            raise KeyError(f"history has no column {name!r}{did_you_mean(name, self)}; it has {', '.join(self)}")
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        """The names of the columns."""
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, History):
            return NotImplemented
        same = (np.array_equal(self[name], other[name], equal_nan=True) for name in self if name in other)
        return list(self) == list(other) and all(same)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    @property
    def records(self) -> int:
        """The number of records."""
        return len(next(iter(self._columns.values()), []))

    def to_pandas(self) -> pd.DataFrame:
        """The history as a data frame with one row per record."""
        import pandas as pd

        return pd.DataFrame(self._columns)

    def __repr__(self) -> str:
        return f"History({self.records} records of {', '.join(self)})"


@dataclass(repr=False)
class Result:
    """What `solve` returns.

    Attributes:
        x: the answer, a pytree like x0: the best of four candidates, and `output` says which. It need not be the iterate
            that the method's theorem is about.
        objective: E objective(x), as certified.
        violation: the largest over the constraints, as certified.
        stationarity: distance of ∇F + Jᵀλ to −N_X near x, as certified.
        multipliers: by constraint; for the Lagrangian F + Σλc + Σμg, one signed number for `between`. A float for a constraint
            function that returns a scalar, an array for one that returns a vector, even of length 1.
        success: whether x is certified feasible, stationary and near the optimum, at the tolerances of `stop`.
        status: why the run ended: 'converged' (`stop` was met, or the iterates are at rounding level), 'budget',
            'interrupted', 'diverged' or 'data_error' (a `Stream` failed: see `cause`). If the budget ran out it may also be
            what the method or the history found: 'converged' (the method's own test), 'infeasible' or 'unbounded'.
        message: the status in words, with what to do next.
        steps: the number of steps taken.
        samples: the number of examples that the method drew.
        seconds: time of the start and the loop, without compilation and evaluation; NaN if it was not measured.
        compile_seconds: the time that the call spent on tracing and compiling, or waiting for it; NaN if it was not measured.
        calls: how often the method called each oracle.
        history: the records.
        certificate: the objective, the violation and the stationarity of x, with intervals.
        method: the method's name.
        output: which iterate x is: 'method' (the one that the method's theorem covers), 'last', 'average' or 'best'.
        constants: the hyperparameters that were estimated.
        settings: all hyperparameters, as used.
        seed: the random seed.
        cause: the exception behind 'data_error'; None otherwise, and in a result that was loaded.
        holdout: what examples that were kept aside show; None without `holdout`. With it, everything else here, the certificate
            too, is that of the second run, on the training part with tightened constraints; `success` takes both.

    Example:
        >>> import jax.numpy as jnp, tightrope as tr
        >>> problem = tr.Problem(lambda x: jnp.sum((x - 1.0) ** 2), tr.at_most(jnp.sum, 1.0, name="budget"))
        >>> result = tr.solve(problem, jnp.zeros(2), steps=500)
        >>> result.status, sorted(result.multipliers)
        ('converged', ['budget'])
    """

    x: PyTree[Any]
    objective: float
    violation: float
    stationarity: float
    multipliers: dict[str, Any]
    success: bool
    status: Status
    message: str
    steps: int
    samples: int
    seconds: float
    calls: dict[str, int]
    history: History
    certificate: Certificate
    method: str
    output: str
    constants: dict[str, float] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    cause: Exception | None = None
    compile_seconds: float = math.nan
    holdout: Promise | None = None

    def __str__(self) -> str:
        return str(self._table())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return self._table()._repr_html_()

    def _table(self) -> Table:
        c = self.certificate
        timed = f"{self.seconds:.2f} s, {self.steps / self.seconds:,.0f} steps/s" if self.seconds > 0 else "not timed"
        compiled = "" if math.isnan(self.compile_seconds) else f", and {self.compile_seconds:.2f} s to compile"
        samples = f"{self.samples:,} samples, " if self.samples else ""
        rows = [
            ("status", f"{self.status}{', success' if self.success else ', not certified'}"),
            ("objective", str(c.objective)),
            ("gap to optimum", gap_text(c)),
            *(
                (f"violation of {name}", f"{violation_text(c, name)}   multiplier {_short(self.multipliers[name])}")
                for name in c.violation
            ),
            ("stationarity", stationarity_text(c)),
            *([] if c.near_stationarity is None else [("near-stationarity", str(c.near_stationarity))]),
            ("feasible?", c.decision),
            *([] if self.holdout is None else [("on unseen data", str(self.holdout))]),
            ("method", f"{self.method}, answer: {self.output}"),
            ("steps", f"{self.steps:,} ({samples}{timed}{compiled})"),
        ]
        if self.constants:
            rows.append(("estimated", ", ".join(f"{name} = {value:.3g}" for name, value in self.constants.items())))
        return Table("Tightrope result", rows, note=self.message)

    def plot(self, against: Against = "steps") -> Figure:
        """Plot objective, violation of each constraint and stationarity along the run, with Matplotlib.

        Curves show the iterate, diamonds the certified answer, and dotted lines the tolerances of the constraints. Where an
        axis is logarithmic and has zeros, as at feasible iterates, its lowest tick reads 0.

        Args:
            against: the horizontal axis: 'steps', 'samples' or 'seconds'; steps instead of samples if none are drawn.

        Returns:
            The figure; a notebook shows it, and `figure.savefig("run.png")` writes a file.
        """
        from .plots import history

        return history(self, against=against)

    def to_dict(self) -> dict[str, Any]:
        """The result as numbers, strings, lists and dicts, for JSON and for trackers of experiments.

        x keeps its dicts and lists; of a model it is a dict from the path of each array. Numbers that are not finite are None,
        for which JSON has no number; the exception `cause` is its text.

        Example:
            >>> import json, jax.numpy as jnp, tightrope as tr
            >>> result = tr.solve(tr.Problem(lambda x: jnp.sum(x["a"] ** 2)), {"a": jnp.ones(2)}, steps=5)
            >>> len(json.loads(json.dumps(result.to_dict()))["x"]["a"])
            2
        """
        return _plain({f.name: getattr(self, f.name) for f in fields(self)})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result to one file (NumPy's .npz: arrays and JSON, no pickle); `tightrope.load` reads it.

        A file that is there already is replaced once the new one is complete.
        """
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(eqx.filter(self.x, eqx.is_inexact_array))]
        text = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("x", "history", "cause")}
        text["certificate"] = self.certificate._asdict()
        text["holdout"] = None if self.holdout is None else self.holdout._asdict()
        text |= {"skeleton": _skeleton(self.x), "history": {name: c.tolist() for name, c in self.history.items()}}
        written = json.dumps(text | {"format": FORMAT}, default=_to_json)
        arrays: dict[str, Any] = {f"x{i}": leaf for i, leaf in enumerate(leaves)}
        arrays |= {"json": np.array(written), "checksum": np.array(checksum(written, leaves))}
        target = Path(path)
        with tempfile.NamedTemporaryFile(dir=target.parent, suffix=".part", delete=False) as file:
            try:
                np.savez(file, **arrays)
                file.close()
                os.replace(file.name, target)
            except BaseException:  # such as a full disk
                os.unlink(file.name)
                raise


def load(path: str | os.PathLike[str], like: PyTree[Any] = None) -> Result:
    """Read a result that `Result.save` wrote.

    Args:
        path: the file.
        like: a pytree like x, needed if x is not made of dicts, lists and tuples alone (such as an Equinox model).

    Example:
        >>> import os, tempfile, jax.numpy as jnp, tightrope as tr
        >>> result = tr.solve(tr.Problem(lambda x: jnp.sum(x**2)), jnp.ones(2), steps=10)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result.save(os.path.join(folder, "result.npz"))
        ...     again = tr.load(os.path.join(folder, "result.npz"))
        >>> again.objective == result.objective
        True
    """
    check_type("load", "path", path, (str, os.PathLike), "the path of a file")
    with open(path, "rb") as file:  # a file that cannot be opened is an OSError, one that cannot be read a ValueError
        try:
            return _read(file, like)
        except Exception as error:
            raise ValueError(f"load: {os.fspath(path)} cannot be read: {error}") from error


def _read(file: BinaryIO, like: PyTree[Any]) -> Result:
    """The result in an open file."""
    if not zipfile.is_zipfile(file):
        raise ValueError("it is damaged, or not a file that Result.save wrote")
    file.seek(0)
    with np.load(file, allow_pickle=False) as archive:
        written, leaves = str(archive["json"]), [archive[f"x{i}"] for i in range(len(archive.files) - 2)]
        intact = int(archive["checksum"]) == checksum(written, leaves)
    text = json.loads(written)
    if not intact:
        raise ValueError("its checksum differs from that of its content")
    if (found := text.pop("format")) != FORMAT:
        raise ValueError(f"it has format {found}, and this version of Tightrope reads format {FORMAT}")
    x = _rebuilt(text.pop("skeleton"), leaves, like)
    text["certificate"] = _certificate(text["certificate"])
    text["multipliers"] = _vectors(text["multipliers"])
    if text["holdout"] is not None:
        ends = {name: _vectors(text["holdout"][name]) for name in ("low", "high", "tightening")}
        text["holdout"] = Promise(**text["holdout"] | ends)
    return Result(x=x, history=History(text.pop("history")), **text)


def checksum(text: str, arrays: Iterable[np.ndarray]) -> int:
    """A checksum of a text and of arrays."""
    found = zlib.crc32(text.encode())
    for array in arrays:
        found = zlib.crc32(array.tobytes(), found)
    return found


def _rebuilt(skeleton: Any, leaves: list[np.ndarray], like: PyTree[Any]) -> PyTree[Any]:
    """The pytree x of a saved result."""
    if like is not None:
        arrays, rest = eqx.partition(like, eqx.is_inexact_array)
        return eqx.combine(jax.tree.unflatten(jax.tree.structure(arrays), [jax.numpy.asarray(a) for a in leaves]), rest)
    if skeleton == "custom":
        raise ValueError(
            "this x is a model, or another pytree that is not made of dicts, lists and tuples alone; pass one of its "
            "structure, such as the start of the run: load(path, like=x0)"
        )
    return _rebuild(skeleton, iter(leaves))


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _plain(np.asarray(value).tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int | str | None):
        return value
    if hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_plain, value))
    if isinstance(value, Exception):
        return f"{type(value).__name__}: {value}"
    arrays = jax.tree_util.tree_leaves_with_path(eqx.filter(value, eqx.is_inexact_array))
    return {jax.tree_util.keystr(path): _plain(leaf) for path, leaf in arrays}


def _short(value: Any) -> str:
    values = np.atleast_1d(np.asarray(value, float))
    return ", ".join(f"{v:.4g}" for v in values[:4]) + (" …" if values.size > 4 else "")


def _skeleton(x: Any) -> Any:
    """The containers of x as JSON: 'leaf' for an array, 'custom' for anything but dicts, lists and tuples."""
    if isinstance(x, dict) and all(isinstance(key, str) for key in x):
        kind, names, parts = "dict", sorted(x), [_skeleton(x[key]) for key in sorted(x)]
    elif type(x) in (list, tuple, WithState):
        kind, names, parts = type(x).__name__, None, [_skeleton(part) for part in x]
    else:
        return "leaf" if hasattr(x, "dtype") or isinstance(x, float) else "custom"
    return "custom" if "custom" in parts else [kind, names, parts]


def _rebuild(skeleton: Any, leaves: Iterator[np.ndarray]) -> Any:
    if skeleton == "leaf":
        return jax.numpy.asarray(next(leaves))
    kind, names, parts = skeleton
    built = [_rebuild(part, leaves) for part in parts]
    make = {"dict": lambda parts: dict(zip(names, parts, strict=True)), "tuple": tuple, "WithState": WithState._make}
    return make.get(kind, list)(built)


def _to_json(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be saved")


def _certificate(saved: dict[str, Any]) -> Certificate:
    one, several = (
        ("objective", "stationarity", "complementarity", "near_stationarity"),
        ("violation", "relative_violation"),
    )
    saved |= {name: Estimate(*saved[name]) for name in one if saved[name] is not None}
    saved |= {name: {key: Estimate(*e) for key, e in saved[name].items()} for name in several}
    saved |= {name: _vectors(saved[name]) for name in ("multipliers", "scale")}
    return Certificate(**saved)


def _vectors(multipliers: dict[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(m) if isinstance(m, list) else m for name, m in multipliers.items()}
