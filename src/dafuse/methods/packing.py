"""A method's state as one flat dict of tensors, grouped by the prefixes of their names."""

from collections.abc import Mapping

from torch import Tensor


def packed(prefix: str, tensors: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """Return the tensors named ``prefix.name``, such as "modules/global.down.weight"."""
    return {f"{prefix}.{name}": tensor.detach() for name, tensor in (tensors or {}).items()}


def unpacked(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the group that `packed` put under this prefix; empty if there is none."""
    start = f"{prefix}."
    return {
        key.removeprefix(start): tensor for key, tensor in state.items() if key.startswith(start)
    }
