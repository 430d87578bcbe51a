"""PyTorch's operators on arrays, written in JAX: those that torch.export leaves of common layers.

Every function takes the random keys of the run first, and then what PyTorch's operator takes. The names and the meaning of the
arguments are PyTorch's.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array

Operator = Callable[..., Any]
OPERATORS: dict[str, Operator] = {}
"""Every operator by its name."""


class Keys:
    """Random keys for the operators of a run that need one."""

    def __init__(self, key: Array | None):
        self._key, self._used = key, 0

    def next(self) -> Array:
        """A key that was not used before."""
        if self._key is None:
            raise ValueError("the model draws random numbers in evaluation; call it with key=")
        self._used += 1
        return jax.random.fold_in(self._key, self._used)


def _same(*names: str) -> Callable[[Operator], Operator]:
    """Register a function that needs no keys."""

    def register(fn: Operator) -> Operator:
        for name in names:
            OPERATORS[name] = lambda keys, *args, **kwargs: fn(*args, **kwargs)
        return fn

    return register


_ELEMENTWISE = {
    "abs": jnp.abs,
    "cos": jnp.cos,
    "cosh": jnp.cosh,
    "erf": jax.scipy.special.erf,
    "exp": jnp.exp,
    "expm1": jnp.expm1,
    "floor": jnp.floor,
    "log": jnp.log,
    "log1p": jnp.log1p,
    "logical_not": jnp.logical_not,
    "neg": jnp.negative,
    "reciprocal": jnp.reciprocal,
    "relu": jax.nn.relu,
    "rsqrt": lax.rsqrt,
    "sigmoid": jax.nn.sigmoid,
    "sign": jnp.sign,
    "sin": jnp.sin,
    "sinh": jnp.sinh,
    "sqrt": jnp.sqrt,
    "tanh": jnp.tanh,
    "alias": lambda a: a,
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
    "logical_and": jnp.logical_and,
    "logical_or": jnp.logical_or,
    "mm": jnp.matmul,
    "bmm": jnp.matmul,
}
_BINARY = {
    "mul": jnp.multiply,
    "div": jnp.divide,
    "pow": jnp.power,
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
    "remainder": jnp.remainder,
}
for _name, _fn in _ELEMENTWISE.items():
    _same(f"aten.{_name}.default")(_fn)
for _name, _fn in _BINARY.items():
    _same(*(f"aten.{_name}.{kind}" for kind in ("Tensor", "Scalar", "Tensor_Tensor", "Tensor_Scalar")))(_fn)
for _name in ("add", "sub", "mul", "floordiv", "truediv", "neg", "getitem", "mod", "pow"):  # on sizes
    _same(_name)(getattr(operator, _name))
_same("aten.pow.Scalar")(jnp.power)
_same("aten.where.self")(jnp.where)
_same("aten.sym_size.int")(lambda a, axis: a.shape[axis])
_same("sym_float")(float)


@_same("aten.add.Tensor", "aten.add.Scalar")
def _add(a: Any, b: Any, alpha: float = 1) -> Any:
    return a + (b if alpha == 1 else alpha * b)


@_same("aten.sub.Tensor", "aten.sub.Scalar")
def _subtract(a: Any, b: Any, alpha: float = 1) -> Any:
    return a - (b if alpha == 1 else alpha * b)


@_same("aten.addmm.default")
def _affine(offset: Any, a: Any, b: Any, beta: float = 1, alpha: float = 1) -> Any:
    return _add(a @ b if alpha == 1 else alpha * (a @ b), offset, beta)


# ---- activations ---------------------------------------------------------------------------------------------------------


_same("aten.clamp.default", "aten.clamp.Tensor")(lambda a, low=None, high=None: jnp.clip(a, low, high))
_same("aten.hardtanh.default")(lambda a, low=-1.0, high=1.0: jnp.clip(a, low, high))
_same("aten.clamp_min.default")(jnp.maximum)
_same("aten.clamp_max.default")(jnp.minimum)


@_same("aten.elu.default")
def _elu(a: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    return scale * jnp.where(a > 0, a, alpha * jnp.expm1(input_scale * jnp.minimum(a, 0)))


@_same("aten.gelu.default")
def _gelu(a: Any, approximate: str = "none") -> Any:
    return jax.nn.gelu(a, approximate=approximate == "tanh")


@_same("aten.leaky_relu.default")
def _leaky_relu(a: Any, slope: float = 0.01) -> Any:
    return jnp.where(a > 0, a, slope * a)


_same("aten._softmax.default")(lambda a, axis, half_to_float: jax.nn.softmax(a, axis))
_same("aten._log_softmax.default")(lambda a, axis, half_to_float: jax.nn.log_softmax(a, axis))


# ---- shapes --------------------------------------------------------------------------------------------------------------

_same("aten.permute.default")(jnp.transpose)
_same("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default")(jnp.reshape)
_same("aten.clone.default")(lambda a, memory_format=None: a)
_same("aten.unsqueeze.default")(jnp.expand_dims)
_same("aten.cat.default")(lambda arrays, axis=0: jnp.concatenate(arrays, axis))
_same("aten.stack.default")(lambda arrays, axis=0: jnp.stack(arrays, axis))
_same("aten.flip.default")(jnp.flip)
_same("aten.repeat.default")(jnp.tile)
_same("aten.select.int")(lambda a, axis, index: lax.index_in_dim(a, index % a.shape[axis], axis, keepdims=False))
_same("aten.index_select.default")(lambda a, axis, index: jnp.take(a, index, axis))
_same("aten.embedding.default")(lambda weight, index, *_: weight[index])


@_same("aten.squeeze.dims", "aten.squeeze.dim")
def _squeeze(a: Any, axes: Any) -> Any:
    listed = axes if isinstance(axes, list) else [axes]
    return jnp.squeeze(a, tuple(axis for axis in listed if a.shape[axis] == 1))


@_same("aten.expand.default")
def _expand(a: Any, sizes: list[int], implicit: bool = False) -> Any:
    old = (1,) * (len(sizes) - a.ndim) + a.shape
    return jnp.broadcast_to(a, [have if want == -1 else want for have, want in zip(old, sizes, strict=True)])


@_same("aten.slice.Tensor")
def _slice(a: Any, axis: int = 0, start: int | None = None, stop: int | None = None, step: int = 1) -> Any:
    return a[(slice(None),) * (axis % a.ndim) + (slice(start, stop, step),)]


@_same("aten.split_with_sizes.default")
def _split(a: Any, sizes: list[int], axis: int = 0) -> Any:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes) - 1)]
    return jnp.split(a, ends, axis)


@_same("aten.constant_pad_nd.default")
def _pad(a: Any, widths: list[int], value: float = 0.0) -> Any:
    pairs = [(widths[i], widths[i + 1], 0) for i in range(0, len(widths), 2)][::-1]
    return lax.pad(a, jnp.asarray(value, a.dtype), [(0, 0, 0)] * (a.ndim - len(pairs)) + pairs)


# ---- new arrays ----------------------------------------------------------------------------------------------------------


def _dtype(name: str | None) -> Any:
    """The JAX dtype of PyTorch's name, such as 'torch.float32'; None stays None."""
    names = {"bool": "bool_", "half": "float16", "long": "int64"}
    short = None if name is None else name.removeprefix("torch.")
    return None if short is None else jax.dtypes.canonicalize_dtype(getattr(jnp, names.get(short, short)))


_same("aten.full.default")(lambda size, value, dtype=None, **_: jnp.full(size, value, _dtype(dtype)))
_same("aten.full_like.default")(lambda a, value, dtype=None, **_: jnp.full_like(a, value, _dtype(dtype)))
_same("aten.scalar_tensor.default")(lambda value, dtype=None, **_: jnp.asarray(value, _dtype(dtype)))
_same("aten._to_copy.default")(lambda a, dtype=None, **_: a if dtype is None else a.astype(_dtype(dtype)))


@_same("aten.arange.start_step")
def _arange(start: Any, stop: Any, step: Any = 1, dtype: str | None = None, **_: Any) -> Any:
    return jnp.arange(start, stop, step, _dtype(dtype))


# ---- reductions ----------------------------------------------------------------------------------------------------------


def _axes(axes: Any) -> tuple[int, ...] | None:
    """The axes of a reduction; all if there are none."""
    return (axes,) if isinstance(axes, int) else tuple(axes) if axes else None


def _reduce(fn: Callable[..., Any], a: Any, axes: Any = None, keep: bool = False, dtype: str | None = None) -> Any:
    return fn(a if dtype is None else a.astype(_dtype(dtype)), axis=_axes(axes), keepdims=keep)


for _name, _fn in {
    "sum.dim_IntList": jnp.sum,
    "mean.dim": jnp.mean,
    "amax.default": jnp.max,
    "amin.default": jnp.min,
    "any.dim": jnp.any,
}.items():
    _same(f"aten.{_name}")(partial(_reduce, _fn))


_same("aten.sum.default")(lambda a, dtype=None: _reduce(jnp.sum, a, dtype=dtype))
_same("aten.mean.default")(lambda a, dtype=None: _reduce(jnp.mean, a, dtype=dtype))


@_same("aten.var.correction")
def _variance(a: Any, axes: Any = None, correction: float | None = 1, keepdim: bool = False) -> Any:
    return jnp.var(a, axis=_axes(axes), ddof=int(1 if correction is None else correction), keepdims=keepdim)


# ---- layers --------------------------------------------------------------------------------------------------------------


@_same("aten.convolution.default")
def _convolution(
    a: Any,
    weight: Any,
    offset: Any,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    output_padding: list[int],
    groups: int,
) -> Any:
    letters = "DHW"[3 - weight.ndim + 2 :]
    numbers = (f"NC{letters}", f"OI{letters}", f"NC{letters}")
    apply = partial(
        lax.conv_general_dilated, rhs_dilation=dilation, dimension_numbers=numbers, feature_group_count=groups
    )
    if not transposed:
        found = apply(a, weight, stride, [(p, p) for p in padding])
    else:  # the adjoint of a convolution: a convolution of the spread-out input with the flipped kernel
        inputs, outputs, *size = weight.shape
        kernel = weight.reshape(groups, inputs // groups, outputs, *size)
        kernel = jnp.swapaxes(kernel, 1, 2).reshape(groups * outputs, inputs // groups, *size)
        kernel = jnp.flip(kernel, tuple(range(2, kernel.ndim)))
        reach = [d * (k - 1) for d, k in zip(dilation, size, strict=True)]
        pads = [(r - p, r - p + extra) for r, p, extra in zip(reach, padding, output_padding, strict=True)]
        found = apply(a, kernel, [1] * len(size), pads, lhs_dilation=stride)
    return found if offset is None else found + _on_channels(offset, found)


def _on_channels(vector: Any, a: Any) -> Any:
    """A vector with one entry per channel, to be combined with an array."""
    return vector.reshape(-1, *(1,) * (a.ndim - 2))


def _normalized(a: Any, axes: tuple[int, ...], eps: float) -> tuple[Any, Any, Any]:
    """The array less its mean, over its standard deviation; the mean; and one over the standard deviation."""
    mean = jnp.mean(a, axes, keepdims=True)
    scale = lax.rsqrt(jnp.var(a, axes, keepdims=True) + eps)
    return (a - mean) * scale, mean, scale


def _scaled(a: Any, weight: Any, offset: Any) -> Any:
    a = a if weight is None else a * weight
    return a if offset is None else a + offset


@_same("aten.native_layer_norm.default")
def _layer_norm(a: Any, shape: list[int], weight: Any, offset: Any, eps: float) -> Any:
    found, mean, scale = _normalized(a, tuple(range(a.ndim - len(shape), a.ndim)), eps)
    return _scaled(found, weight, offset), mean, scale


@_same("aten.native_group_norm.default")
def _group_norm(a: Any, weight: Any, offset: Any, n: int, c: int, size: int, groups: int, eps: float) -> Any:
    found, mean, scale = _normalized(a.reshape(n, groups, -1), (2,), eps)
    weight, offset = (None if v is None else _on_channels(v, a) for v in (weight, offset))
    return _scaled(found.reshape(a.shape), weight, offset), mean[..., 0], scale[..., 0]


def _batch_norm(a: Any, weight: Any, offset: Any, mean: Any, variance: Any, eps: float) -> Any:
    found = (a - _on_channels(mean, a)) * _on_channels(lax.rsqrt(variance + eps), a)
    return _scaled(found, *(None if v is None else _on_channels(v, a) for v in (weight, offset)))


@_same("aten._native_batch_norm_legit_no_training.default")
def _batch_norm_evaluation(
    a: Any, weight: Any, offset: Any, mean: Any, variance: Any, momentum: Any, eps: float
) -> Any:
    return _batch_norm(a, weight, offset, mean, variance, eps), mean, lax.rsqrt(variance + eps)


@_same("aten._native_batch_norm_legit_functional.default")
def _batch_norm_training(
    a: Any, weight: Any, offset: Any, mean: Any, variance: Any, training: bool, momentum: float, eps: float
) -> Any:
    if not training:
        return *_batch_norm_evaluation(a, weight, offset, mean, variance, momentum, eps), mean, variance
    axes = (0, *range(2, a.ndim))
    now, spread = jnp.mean(a, axes), jnp.var(a, axes)
    count = a.size // a.shape[1]
    unbiased = spread * (count / max(count - 1, 1))
    new = (
        mean + momentum * (lax.stop_gradient(now) - mean),
        variance + momentum * (lax.stop_gradient(unbiased) - variance),
    )
    return _batch_norm(a, weight, offset, now, spread, eps), now, lax.rsqrt(spread + eps), *new


@_same("aten._native_batch_norm_legit.no_stats")
def _batch_norm_of_batch(a: Any, weight: Any, offset: Any, training: bool, momentum: Any, eps: float) -> Any:
    axes = (0, *range(2, a.ndim))
    mean, variance = jnp.mean(a, axes), jnp.var(a, axes)
    return _batch_norm(a, weight, offset, mean, variance, eps), mean, lax.rsqrt(variance + eps)


def _windows(
    a: Any,
    start: float,
    combine: Any,
    size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    ceil: bool,
) -> Any:
    """A reduction over windows of the last axes; with `ceil`, the last window may reach beyond the padding."""
    axes, widths = len(size), []
    for i, length in enumerate(a.shape[-axes:]):
        reach = dilation[i] * (size[i] - 1) + 1
        room = length + 2 * padding[i] - reach
        windows = -(-room // stride[i]) if ceil else room // stride[i]
        if ceil and windows * stride[i] >= length + padding[i]:
            windows -= 1  # PyTorch drops a window that begins beyond the input
        widths.append((padding[i], max(windows * stride[i] + reach - length - padding[i], 0)))
    ones = (1,) * (a.ndim - axes)
    pads = [(0, 0)] * len(ones) + widths
    return lax.reduce_window(
        a,
        jnp.asarray(start, a.dtype),
        combine,
        ones + tuple(size),
        ones + tuple(stride),
        pads,
        window_dilation=ones + tuple(dilation),
    )


def _each(value: Any, axes: int) -> list[int]:
    """A list with one entry per axis."""
    listed = value if isinstance(value, list) else [value]
    return listed * axes if len(listed) == 1 else listed


@_same("aten.max_pool2d_with_indices.default", "aten.max_pool3d_with_indices.default")
def _max_pool(
    a: Any, size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
) -> Any:
    stride, padding, dilation = (_each(value, len(size)) for value in (stride or size, padding, dilation))
    return _windows(a, -math.inf, lax.max, size, stride, padding, dilation, ceil_mode), None


@_same("aten.avg_pool1d.default", "aten.avg_pool2d.default", "aten.avg_pool3d.default")
def _average_pool(
    a: Any,
    size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Any:
    axes = len(size)
    stride, padding, ones = _each(stride or size, axes), _each(padding, axes), [1] * axes
    total = _windows(a, 0.0, lax.add, size, stride, padding, ones, ceil_mode)
    if divisor is not None:
        return total / divisor
    counted = jnp.ones(a.shape[-axes:], a.dtype)
    if count_include_pad:
        counted, padding = jnp.pad(counted, [(p, p) for p in padding], constant_values=1), [0] * axes
    return total / _windows(counted, 0.0, lax.add, size, stride, padding, ones, ceil_mode)


@_same("aten._adaptive_avg_pool2d.default")
def _adaptive_average_pool(a: Any, sizes: list[int]) -> Any:
    for axis, (length, size) in enumerate(zip(a.shape[-2:], sizes, strict=True), start=a.ndim - 2):
        bounds = [(i * length // size, -(-(i + 1) * length // size)) for i in range(size)]
        parts = [jnp.mean(lax.slice_in_dim(a, low, high, axis=axis), axis, keepdims=True) for low, high in bounds]
        a = jnp.concatenate(parts, axis)
    return a


@_same("aten.upsample_nearest2d.vec")
def _nearest(a: Any, size: list[int] | None, factors: list[float] | None) -> Any:
    sizes = size or [int(length * factor) for length, factor in zip(a.shape[-2:], factors or [], strict=True)]
    for axis, new in zip((a.ndim - 2, a.ndim - 1), sizes, strict=True):
        a = jnp.take(a, jnp.arange(new) * a.shape[axis] // new, axis)
    return a


def _dropout(keys: Keys, a: Any, share: float, train: bool | None) -> Any:
    if not train:
        return a, jnp.ones_like(a, bool)
    kept = jax.random.bernoulli(keys.next(), 1.0 - share, a.shape)
    return jnp.where(kept, a / (1.0 - share), 0.0), kept


OPERATORS["aten.native_dropout.default"] = _dropout
