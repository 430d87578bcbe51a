"""PyTorch models as functions of JAX arrays: `from_module` translates a module, `into_module` puts the answer back into it.

Needs PyTorch: pip install 'tightrope[torch]'. PyTorch traces the module (torch.export) into a graph of operators on arrays, and
`operators` has each of them in JAX. So a translated model is like any other function of a problem: it is compiled and
differentiated, and it runs without PyTorch.

A loader of PyTorch needs no translation: `tightrope.Stream(lambda: loader)`.
"""

from .modules import TorchModel, from_module, into_module

__all__ = ["TorchModel", "from_module", "into_module"]
