"""Translated PyTorch modules compute what PyTorch computes, in training and in evaluation, and their answers go back."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tightrope as tr

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from tightrope.torch import from_module, into_module  # noqa: E402


class Residual(nn.Module):
    """A convolution with batch normalization beside its input."""

    def __init__(self):
        super().__init__()
        self.inside, self.norm, self.last = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Linear(3, 2)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.inside(x)) + x).mean((2, 3)))


VECTOR, IMAGE, SEQUENCE = (6, 8), (6, 3, 8, 9), (6, 5, 8)
CASES = {
    "dense": (lambda: nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 1)), VECTOR),
    "residual": (Residual, IMAGE),
    "activations": (
        lambda: nn.Sequential(
            *(nn.SiLU(), nn.GELU(), nn.GELU(approximate="tanh"), nn.Softplus(), nn.LeakyReLU(), nn.ELU(), nn.SELU()),
            *(
                nn.Hardtanh(),
                nn.ReLU6(),
                nn.Mish(),
                nn.Hardswish(),
                nn.Softsign(),
                nn.LogSigmoid(),
                nn.PReLU(),
                nn.CELU(),
            ),
            *(nn.Softmax(-1), nn.LogSoftmax(-1), nn.Threshold(-2.0, 0.5), nn.GLU()),
        ),
        VECTOR,
    ),
    "pooling": (
        lambda: nn.Sequential(
            nn.ZeroPad2d(1),
            nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True),
            nn.AvgPool2d(2, padding=1, ceil_mode=True),
            nn.Upsample(scale_factor=2),
            nn.AdaptiveAvgPool2d((2, 3)),
            nn.Flatten(),
        ),
        IMAGE,
    ),
    "norms": (lambda: nn.Sequential(nn.LayerNorm(8), nn.BatchNorm1d(5)), SEQUENCE),
    "groups": (lambda: nn.Sequential(nn.GroupNorm(3, 3), nn.InstanceNorm2d(3), nn.Conv2d(3, 6, 2, groups=3)), IMAGE),
    "transposed": (
        lambda: nn.Sequential(
            nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1, dilation=2),
            nn.ConvTranspose2d(4, 6, 2, groups=2),
            nn.Conv2d(6, 2, 3, dilation=2, stride=2),
        ),
        IMAGE,
    ),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), SEQUENCE),
    "lstm": (lambda: nn.LSTM(8, 4, num_layers=2, batch_first=True), SEQUENCE),
    "gru": (lambda: nn.GRU(8, 4, batch_first=True, bidirectional=True), SEQUENCE),
}


def batch(shape, examples=None, seed=1):
    return np.random.default_rng(seed).normal(size=(examples or shape[0], *shape[1:])).astype("float32")


def flat(output):
    """The arrays of an output, in order."""
    if isinstance(output, (tuple, list)):
        return [array for part in output for array in flat(part)]
    return [output.detach().numpy() if isinstance(output, torch.Tensor) else np.asarray(output)]


@pytest.mark.by_default("dense", "residual", "activations", "pooling")
@pytest.mark.parametrize("name", CASES)
def test_a_translated_module_computes_what_the_module_computes_on_batches_of_any_size(name):
    torch.manual_seed(0)
    make, shape = CASES[name]
    module, x = make(), batch(shape, 9)
    model = from_module(module, batch(shape))
    for part in module.modules():
        if hasattr(part, "running_mean") and part.running_mean is not None:
            part.running_mean += 0.3
            part.running_var *= 1.7
    state = {key: jnp.asarray(value.numpy(), jnp.float32) for key, value in module.named_buffers()}
    found, _ = jax.jit(lambda params, x: model(params, x, state=state))(model.params, x)
    for ours, theirs in zip(flat(found), flat(module.eval()(torch.from_numpy(x))), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)
    found, new = model(model.params, x, state=state, key=jax.random.key(0))
    for ours, theirs in zip(flat(found), flat(module.train()(torch.from_numpy(x))), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-5)
    for key, value in module.named_buffers():
        np.testing.assert_allclose(new[key], value.numpy(), rtol=1e-4, atol=1e-6, err_msg=key)


def test_gradients_are_those_of_pytorch():
    torch.manual_seed(0)
    module, x = Residual(), batch(IMAGE)
    model = from_module(module, x)
    found = jax.grad(lambda params: jnp.sum(model(params, x, key=jax.random.key(0)) ** 2))(model.params)
    (module.train()(torch.from_numpy(x)) ** 2).sum().backward()
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(found[name], parameter.grad.numpy(), rtol=1e-3, atol=2e-4, err_msg=name)


def test_dropout_drops_its_share_with_a_key_and_nothing_without():
    model = from_module(nn.Sequential(nn.Linear(1, 1, bias=False), nn.Dropout(0.3)), np.ones((2, 1), "float32"))
    params, x = {"0.weight": jnp.ones((1, 1))}, np.ones((4000, 1), "float32")
    assert (model(params, x) == 1.0).all()
    first, again, other = (model(params, x, key=jax.random.key(seed)) for seed in (0, 0, 1))
    assert abs(float(jnp.mean(first == 0.0)) - 0.3) < 0.03
    assert abs(float(jnp.max(first)) - 1.0 / 0.7) < 1e-6
    assert (first == again).all()
    assert not (first == other).all()


def test_parameters_without_gradients_are_frozen_and_translation_leaves_the_module_as_it_was():
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    module[0].requires_grad_(False)
    module[2].eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    model = from_module(module, batch((4, 3)))
    assert sorted(model.frozen) == ["0.bias", "0.weight"]
    assert sorted(model.params) == ["1.bias", "1.weight", "2.bias", "2.weight"]
    assert [part.training for part in module] == [True, True, False]
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_module_with_batch_normalization_is_solved_with_its_state_and_put_back():
    rng = np.random.default_rng(0)
    x = rng.normal(2.0, 3.0, size=(1000, 4)).astype("float32")
    y = (x[:, 0] > 2.0).astype("float32")
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    model = from_module(module, x[:2])
    data = tr.Dataset({"x": x, "y": y}, batch_size=64)

    def loss(params, batch, state, key=None):
        score, new = model(params, batch["x"], state=state, key=key)
        return jnp.mean(jnp.logaddexp(0.0, score[:, 0]) - batch["y"] * score[:, 0]), new

    def rate(params, batch, state, key=None):
        return jnp.mean(jax.nn.sigmoid(model(params, batch["x"], state=state, key=key)[0]))

    problem = tr.Problem(loss, tr.at_most(rate, 0.4, data=data), data=data)
    result = tr.solve(problem, tr.WithState(model.params, model.state), steps=300)
    into_module(module, result.x.params, result.x.state)
    theirs = torch.sigmoid(module.eval()(torch.from_numpy(x))).mean().item()
    assert result.certificate.verdict == "feasible"
    assert theirs == pytest.approx(float(rate(result.x.params, data.arrays, result.x.state)), abs=1e-5)
    assert module[1].num_batches_tracked.dtype == torch.int64


def test_bad_modules_inputs_and_answers_are_refused_with_what_came_and_what_was_expected():
    class Branching(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    class Unusual(nn.Module):
        def forward(self, x):
            return torch.linalg.svdvals(x)

    ones = np.ones((3, 2), "float32")
    with pytest.raises(TypeError, match=r"module must be a torch\.nn\.Module, got str"):
        from_module("model", ones)
    with pytest.raises(ValueError, match="inputs is empty"):
        from_module(nn.Linear(2, 1))
    with pytest.raises(ValueError, match=r"input 0 must have at least two examples .* got shape \(1, 2\)"):
        from_module(nn.Linear(2, 1), ones[:1])
    with pytest.raises(ValueError, match="must not branch on the values of tensors"):
        from_module(Branching(), ones)
    with pytest.raises(ValueError, match=r"the module uses aten.*svd.*does not translate"):
        from_module(Unusual(), ones)
    with pytest.raises(ValueError, match="params has 'w', which the module has not; it has weight, bias"):
        into_module(nn.Linear(2, 1), {"w": ones})
    with pytest.raises(ValueError, match=r"params\['weight'\] has shape \(3, 2\); expected \(1, 2\)"):
        into_module(nn.Linear(2, 1), {"weight": ones})


def test_a_loader_of_pytorch_is_a_stream():
    x = torch.arange(12.0).reshape(6, 2)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=3)
    stream = tr.Stream(lambda: loader)
    assert stream.batch_size == 3
