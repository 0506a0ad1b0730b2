"""What all layers of a sequence have in common."""

import inspect
from typing import Any

from tf_transformer.base.type_names import Shape
from tf_transformer.layers.rematerialization import Rematerialized


class Layer(Rematerialized):
    """The base of the layers that make [B, T, d] of [B, T, d]: the mask of their first input is that of the output, and
    each argument of a constructor is an attribute and a part of the config."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.supports_masking = True

    def compute_output_shape(self, x_shape: Shape, *other_shapes: Shape) -> Any:
        return x_shape

    def get_config(self) -> dict[str, Any]:
        made = [kind.__init__ for kind in type(self).__mro__ if issubclass(kind, Layer)]
        names = [name for init in reversed(made) for name in inspect.signature(init).parameters if hasattr(self, name)]
        return super().get_config() | {name: getattr(self, name) for name in names}
