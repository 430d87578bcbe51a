"""Translate a PyTorch module: its parameters, its buffers, and its graph as a function."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from ..arguments import check_type
from .operators import OPERATORS, Keys


class Step(NamedTuple):
    """One operator of a graph: the name of its value, what computes it, and its arguments, which refer to values by name."""

    name: str
    operator: str
    args: Any
    kwargs: dict[str, Any]


class Value(NamedTuple):
    """A reference to a value of the graph."""

    name: str


@dataclass(frozen=True)
class Graph:
    """A module as a list of operators.

    Attributes:
        parameters: the name of each parameter, by the name of its value.
        buffers: the same for buffers.
        constants: arrays of the graph, by the names of their values.
        inputs: the names of the values of the inputs.
        steps: the operators in order.
        new_buffers: the value that each buffer is replaced by, for those that the module changes.
        outputs: what the module returns, flattened.
        single: whether it returns one array, not a tuple.
    """

    parameters: dict[str, str]
    buffers: dict[str, str]
    constants: dict[str, Array]
    inputs: list[str]
    steps: list[Step]
    new_buffers: dict[str, Value]
    outputs: list[Any]
    single: bool

    def run(
        self, params: Mapping[str, Array], state: Mapping[str, Array], inputs: tuple[Any, ...], key: Array | None
    ) -> tuple[Any, dict[str, Array]]:
        """What the module returns, and the buffers after it."""
        keys = Keys(key)
        values: dict[str, Any] = {value: params[name] for value, name in self.parameters.items()}
        values |= {value: jax.lax.stop_gradient(state[name]) for value, name in self.buffers.items()}
        values |= self.constants | dict(zip(self.inputs, map(jnp.asarray, inputs), strict=True))
        for step in self.steps:
            args, kwargs = _filled((step.args, step.kwargs), values)
            values[step.name] = OPERATORS[step.operator](keys, *args, **kwargs)
        new = {name: values[value.name].astype(state[name].dtype) for name, value in self.new_buffers.items()}
        outputs = _filled(self.outputs, values)
        return outputs[0] if self.single else tuple(outputs), {**state, **new}


class TorchModel:
    """A PyTorch module as a function of JAX arrays; made by `from_module`.

    Attributes:
        params: the trainable parameters by name: x0 of a problem.
        state: the buffers by name, such as the running means of a batch norm, as floats.
        frozen: the parameters that do not require gradients; they stay as they are.
    """

    def __init__(
        self,
        params: dict[str, Array],
        frozen: dict[str, Array],
        state: dict[str, Array],
        training: Graph,
        evaluation: Graph,
    ):
        self.params, self.frozen, self.state = params, frozen, state
        self._training, self._evaluation = training, evaluation

    def __call__(
        self,
        params: Mapping[str, Array],
        *inputs: Any,
        state: Mapping[str, Array] | None = None,
        key: Array | None = None,
    ) -> Any:
        """What the module returns for these parameters and inputs.

        Args:
            params: the parameters by name, like `params`.
            inputs: the inputs of the module's forward; any number of examples.
            state: buffers in place of the module's own. If they are given, the new ones are returned too:
                `output, state = model(...)`.
            key: a random key: the module is run as in training, with dropout and the statistics of the batch; None: as in
                evaluation.
        """
        graph = self._evaluation if key is None else self._training
        output, new = graph.run({**self.frozen, **params}, self.state if state is None else state, inputs, key)
        return output if state is None else (output, new)

    def __repr__(self) -> str:
        numbers = sum(leaf.size for leaf in self.params.values())
        return f"TorchModel({numbers:,} parameters in {len(self.params)} arrays, {len(self.state)} buffers)"


def from_module(module: Any, *inputs: Any) -> TorchModel:
    """Translate a PyTorch module into a function of JAX arrays.

    Args:
        module: a `torch.nn.Module`. It is not changed.
        inputs: one batch of inputs of its forward, tensors or arrays, with at least two examples. Other batches may have
            another number of examples, but not other shapes.

    Returns:
        A `TorchModel`: `model(params, *inputs)`, with `model.params` to start from.

    Example:
        >>> import jax, jax.numpy as jnp, numpy as np, tightrope as tr, torch
        >>> from tightrope.torch import from_module, into_module
        >>> _ = torch.manual_seed(0)
        >>> module = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        >>> rng = np.random.default_rng(0)
        >>> x = rng.normal(size=(1000, 3)).astype("float32")
        >>> data = tr.Dataset({"x": x, "y": x[:, 0] * x[:, 1]}, batch_size=32)
        >>> model = from_module(module, x[:2])
        >>> error = lambda params, batch: jnp.mean((model(params, batch["x"])[:, 0] - batch["y"]) ** 2)
        >>> bias = lambda params, batch: jnp.mean(model(params, batch["x"])[:, 0] - batch["y"])
        >>> problem = tr.Problem(error, tr.between(bias, -0.01, 0.01, data=data), data=data)
        >>> result = tr.solve(problem, model.params, steps=300)
        >>> into_module(module, result.x)
        >>> bool(abs(module(torch.from_numpy(x)).mean() - (x[:, 0] * x[:, 1]).mean()) < 0.011)
        True
    """
    torch = _torch()
    check_type("from_module", "module", module, (torch.nn.Module,), "a torch.nn.Module")
    tensors = tuple(_tensor(torch, i, value) for i, value in enumerate(inputs))
    if not tensors:
        raise ValueError("from_module: inputs is empty; expected a batch of each input of the module's forward")
    arrays = {name: _array(tensor) for name, tensor in module.named_parameters()}
    trained = {name for name, tensor in module.named_parameters() if tensor.requires_grad}
    buffers = {name: _floats(_array(tensor)) for name, tensor in module.named_buffers()}
    return TorchModel(
        {name: arrays[name] for name in arrays if name in trained},
        {name: arrays[name] for name in arrays if name not in trained},
        buffers,
        training=_graph(torch, module, tensors, training=True),
        evaluation=_graph(torch, module, tensors, training=False),
    )


def into_module(module: Any, params: PyTree[Any], state: Mapping[str, Any] | None = None) -> None:
    """Copy parameters, and buffers if they are given, into a PyTorch module, in place.

    Args:
        module: the module that was translated, or another of its kind.
        params: parameters by name, such as `result.x`.
        state: buffers by name, such as `result.x.state` of a problem with model state.

    Example:
        >>> import torch
        >>> from tightrope.torch import from_module, into_module
        >>> module = torch.nn.Linear(2, 1, bias=False)
        >>> into_module(module, {"weight": [[3.0, 4.0]]})
        >>> module.weight.tolist()
        [[3.0, 4.0]]
    """
    torch = _torch()
    check_type("into_module", "module", module, (torch.nn.Module,), "a torch.nn.Module")
    for kind, new, own in (
        ("params", params, dict(module.named_parameters())),
        ("state", state or {}, dict(module.named_buffers())),
    ):
        check_type("into_module", kind, new, (Mapping,), "a dict of arrays by name")
        for name, value in new.items():
            if name not in own:
                raise ValueError(f"into_module: {kind} has {name!r}, which the module has not; it has {', '.join(own)}")
            array = np.asarray(value)
            if array.shape != tuple(own[name].shape):
                expected = tuple(own[name].shape)
                raise ValueError(f"into_module: {kind}[{name!r}] has shape {array.shape}; expected {expected}")
            with torch.no_grad():
                own[name].copy_(torch.from_numpy(np.array(array)))


def _graph(torch: Any, module: Any, tensors: tuple[Any, ...], training: bool) -> Graph:
    """The module's graph of operators, as in training or as in evaluation."""
    dynamic = tuple({0: torch.export.Dim.AUTO} for _ in tensors)
    try:
        with _mode(module, training), warnings.catch_warnings(), torch.random.fork_rng():
            warnings.simplefilter("ignore")
            # The decompositions reduce PyTorch's thousands of operators to some two hundred.
            exported = torch.export.export(module, tensors, dynamic_shapes=dynamic, strict=False).run_decompositions()
    except Exception as error:
        raise ValueError(
            f"from_module: PyTorch cannot trace this module ({type(error).__name__}: {str(error).splitlines()[0][:200]}); "
            "its forward must not branch on the values of tensors"
        ) from error
    signature, nodes = exported.graph_signature, list(exported.graph.nodes)
    steps = [
        Step(node.name, _name(node.target), _referring(torch, node.args), dict(_referring(torch, node.kwargs)))
        for node in nodes
        if node.op == "call_function" and not _name(node.target).startswith("aten._assert")
    ]
    unknown = sorted({step.operator for step in steps} - set(OPERATORS))
    if unknown:
        raise ValueError(
            f"from_module: the module uses {', '.join(unknown)}, which tightrope.torch does not translate; "
            "write that part of the model with JAX"
        )
    returned = _referring(torch, next(node for node in nodes if node.op == "output").args[0])
    changed = len(signature.buffers_to_mutate)
    outputs = list(returned[changed:])
    return Graph(
        dict(signature.inputs_to_parameters),
        dict(signature.inputs_to_buffers),
        {
            value: _array(exported.constants[name])
            for value, name in signature.inputs_to_lifted_tensor_constants.items()
        },
        list(signature.user_inputs),
        steps,
        {signature.buffers_to_mutate[value.name]: value for value in returned[:changed]},
        outputs,
        single=len(outputs) == 1,
    )


def _referring(torch: Any, args: Any) -> Any:
    """Arguments with references in place of nodes, and names in place of PyTorch's own objects."""
    if isinstance(args, torch.fx.Node):
        return Value(args.name)
    if isinstance(args, (tuple, list)):
        return [_referring(torch, one) for one in args]
    if isinstance(args, Mapping):
        return {name: _referring(torch, one) for name, one in args.items()}
    return str(args) if isinstance(args, (torch.dtype, torch.device, torch.layout, torch.memory_format)) else args


def _filled(args: Any, values: Mapping[str, Any]) -> Any:
    """Arguments with values in place of references."""
    if isinstance(args, Value):
        return values[args.name]
    if isinstance(args, (tuple, list)):
        return [_filled(one, values) for one in args]
    return {name: _filled(one, values) for name, one in args.items()} if isinstance(args, dict) else args


def _name(target: Any) -> str:
    """The name of an operator: 'aten.add.Tensor', or 'mul' for one of Python's on sizes."""
    return target.__name__ if target.__module__ in (operator.__name__, "_operator", "math") else str(target)


@contextmanager
def _mode(module: Any, training: bool) -> Iterator[None]:
    """Training or evaluation; every part is put back afterwards."""
    before = {part: part.training for part in module.modules()}
    module.train(training)
    try:
        yield
    finally:
        for part, was in before.items():
            part.training = was


def _tensor(torch: Any, place: int, value: Any) -> Any:
    try:
        tensor = value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))
    except TypeError as error:
        raise TypeError(
            f"from_module: input {place} must be a tensor or an array, got {type(value).__name__}"
        ) from error
    if tensor.ndim == 0 or len(tensor) < 2:
        raise ValueError(
            f"from_module: input {place} must have at least two examples along its first axis, got shape {tuple(tensor.shape)}"
        )
    return tensor


def _array(tensor: Any) -> Array:
    return jnp.asarray(tensor.detach().cpu().numpy())


def _floats(array: Array) -> Array:
    """Counters as floats, because model state is a pytree of floats."""
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(jnp.float32)


def _torch() -> Any:
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ImportError("tightrope.torch needs PyTorch: pip install 'tightrope[torch]'") from error
    return torch
