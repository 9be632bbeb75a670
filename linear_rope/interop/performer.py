"""performer-pytorch: its models upgraded in place, and its attention inside a :class:`linear_rope.CausalLM`."""

import contextlib
import io
from types import ModuleType
from typing import Any, TypeVar

import torch
from einops import rearrange
from torch import Tensor, nn

from linear_rope.checks import check_choice
from linear_rope.interop.performer_attention import UpgradedAttention
from linear_rope.interop.performer_kernels import PeerFeatures

Model = TypeVar("Model", bound=nn.Module)


def upgrade(model: Model, rope: str = "after") -> Model:
    """Turn every attention of a performer-pytorch model into this library's, in place.

    Parameters, random features, their redraw and the state dict stay what they are, so an optimizer goes on, and
    checkpoints load into upgraded models and into the peer's alike. A causal attention sees nothing of the future any
    more, masks leave padding out of the denominator too, and time and memory fall. Local heads, which are softmax
    attention in a window, stay the peer's. Cross-attention has no rotation. :func:`downgrade` is the way back.

    Args:
        model: a ``PerformerLM``, ``Performer``, ``SelfAttention``, or a module that holds some.
        rope: "after" rotates the features of queries and keys (RoFormer, eq. 19): self-attention has other outputs
            than before, which training gets used to. "before" keeps the peer's function, with its ε and its rotation
            of queries and keys by the ``pos_emb`` it is given: outputs are the peer's but for what the peer takes
            from the future.

    Returns:
        ``model``.

    Raises:
        ValueError: nothing to upgrade, or an attention that this library cannot compute; then nothing has changed.
        ImportError: performer-pytorch is not there, or its Python modules are not.
    """
    check_choice("rope", rope, ("after", "before"))
    peer = _peer()
    found = [x for x in model.modules() if isinstance(x, (peer.Attention, UpgradedAttention))]
    if not found:
        raise ValueError(
            f"model is a {type(model).__name__} without an attention of performer_pytorch; give a PerformerLM, a "
            "Performer, a SelfAttention or what holds one"
        )
    for attention in found:
        _check(attention, rope, peer)
    for attention in found:
        if not isinstance(attention, UpgradedAttention):
            # The object stays, as with PyTorch's parametrizations, so that whoever holds it has the upgraded one.
            attention.peer_class, attention.__class__ = type(attention), UpgradedAttention
            attention.feature_map = PeerFeatures(attention.fast_attention)
        attention.rope = rope
    return model


def downgrade(model: Model) -> Model:
    """Undo :func:`upgrade`, in place; a model that was not upgraded stays as it is."""
    for module in model.modules():
        if isinstance(module, UpgradedAttention):
            module.__class__ = module.peer_class
            for name in ("feature_map", "rope", "peer_class"):
                delattr(module, name)
    return model


def _check(attention: Any, rope: str, peer: ModuleType) -> None:
    """Raises ValueError where the upgraded attention would not be what the peer's is."""
    kind = getattr(attention, "peer_class", type(attention))
    fast = attention.fast_attention
    if kind not in (peer.Attention, peer.SelfAttention, peer.CrossAttention) or type(fast) is not peer.FastAttention:
        raise ValueError(
            f"model has a {kind.__name__} with a {type(fast).__name__}, a class of your own that may attend in another "
            "way; give performer_pytorch's own classes"
        )
    if fast.no_projection:
        raise ValueError(
            "no_projection is True: queries and keys pass a softmax, the keys' over all positions, and no feature map; "
            "give a model with no_projection=False"
        )
    if rope == "after" and fast.nb_features % 2 and attention.global_heads and kind is not peer.CrossAttention:
        raise ValueError(
            f'nb_features is {fast.nb_features}, but rope="after" rotates pairs of features; give a model with an even '
            f'nb_features, such as {fast.nb_features + 1}, or rope="before"'
        )


def _peer() -> ModuleType:
    try:
        from performer_pytorch import performer_pytorch
    except ImportError as error:
        raise ImportError(
            f"performer-pytorch cannot be imported ({error}); pip install performer-pytorch, and setuptools on Python "
            "3.12 and newer, which have no distutils"
        ) from error
    module: ModuleType = performer_pytorch
    return module


class PerformerPytorchAttention(nn.Module):
    """``performer_pytorch.SelfAttention`` with its own rotary embedding, which it applies before its feature map.

    It is called as this library's modules are. Two things are the peer's own: in causal mode the stabiliser of its
    keys is a maximum over all positions with a constant added after it, so the future leaks into the past; and the
    path without compiled kernels keeps N·M·D numbers a head for the backward pass.

    Its rotary table has ``max_length`` positions; ``rotary=False`` passes none at all. Its random features are drawn
    from ``seed`` (the peer draws from the global generator, which is restored afterwards).

    Raises:
        ImportError: performer-pytorch is not installed.
        ValueError: a padding mask, or a sequence longer than ``max_length``.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        num_features: int,
        max_length: int,
        rotary: bool = True,
        causal: bool = True,
        seed: int = 0,
    ) -> None:
        super().__init__()
        peer = _peer()
        self.max_length = max_length
        # The peer decomposes its projection on the CPU and copies it back, which the meta device cannot do.
        with torch.device("cpu"), torch.random.fork_rng(devices=[]), contextlib.redirect_stdout(io.StringIO()):
            torch.manual_seed(seed)
            attention = peer.SelfAttention(
                dim,
                causal=causal,
                heads=heads,
                dim_head=dim // heads,
                nb_features=num_features,
                feature_redraw_interval=None,
                attn_out_bias=False,
            )
        # Projections under this library's names start with the weights that equal names have in its own models. The
        # peer's module itself is kept out of the module tree, or every weight would be in the state dict twice.
        self.query, self.key, self.value, self.out = attention.to_q, attention.to_k, attention.to_v, attention.to_out
        self.fast_attention = attention.fast_attention
        self._unregistered = (attention,)
        self.rotary = peer.FixedPositionalEmbedding(dim // heads, max_length) if rotary else None

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        """(B, N, dim) → (B, N, dim); ``positions`` are 0, 1, 2, ... whatever is given, as the peer has no others."""
        if key_padding_mask is not None:
            raise ValueError(
                "key_padding_mask was given, but performer-pytorch keeps padding in its denominator; trim it"
            )
        return self._unregistered[0](x, pos_emb=self._rotations(x))

    def attention_weights(self, x: Tensor) -> Tensor:
        """The weight of every value in every output, (B, H, N, N), from the peer's own path with identity values."""
        heads = self._unregistered[0].heads
        q, k = (rearrange(project(x), "b n (h d) -> b h n d", h=heads) for project in (self.query, self.key))
        rotations = self._rotations(x)
        if rotations is not None:
            q, k = _peer().apply_rotary_pos_emb(q, k, rotations)
        identity = torch.eye(x.shape[1], dtype=q.dtype, device=x.device).expand(*q.shape[:2], -1, -1)
        return self.fast_attention(q, k, identity)

    def _rotations(self, x: Tensor) -> Tensor | None:
        if x.shape[1] > self.max_length:
            raise ValueError(
                f"x has {x.shape[1]} positions, but the rotary table ends at {self.max_length}; give fewer, or make "
                "the model with a larger max_length"
            )
        return None if self.rotary is None else self.rotary(x)
