"""A method's state is one flat dict of tensors: groups of them go in and out by a common prefix."""

from collections.abc import Mapping

from torch import Tensor


def packed(prefix: str, tensors: Mapping[str, Tensor] | None) -> dict[str, Tensor]:
    """``{"modules/global": {"down.weight": t}}`` as ``{"modules/global.down.weight": t}``."""
    return {f"{prefix}.{name}": tensor.detach() for name, tensor in (tensors or {}).items()}


def unpacked(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """What `packed` put in; empty where it put in nothing."""
    start = f"{prefix}."
    return {
        key.removeprefix(start): tensor for key, tensor in state.items() if key.startswith(start)
    }
