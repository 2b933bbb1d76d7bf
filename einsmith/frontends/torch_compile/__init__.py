"""`torch.compile(model, backend="einsmith")`: AOTAutograd's graphs of forward and backward as Einsmith's programs."""

from einsmith.frontends.torch_compile.aot import backend
from einsmith.frontends.torch_dynamo import extend_dynamo

__all__ = ["backend"]

extend_dynamo()
