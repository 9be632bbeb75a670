"""The parts of a model: its embedding, its blocks, and how the weights begin.

Axis names: B batch, N length, dim model width.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linear_rope.attention.registry import ATTENTIONS, make_attention
from linear_rope.checks import check_padding_mask, check_weights_are_known
from linear_rope.model_config import ADDITIONS, AttentionSettings, ModelConfig
from linear_rope.positions.absolute import EmbeddingPositions
from linear_rope.positions.blocks import BlockPositions
from linear_rope.positions.registry import InAttention, find_position
from linear_rope.positions.scores import ScorePositions
from linear_rope.registry import taken as given

MakeAttention = Callable[[int], nn.Module]


def attention_of_layer(config: ModelConfig, layer: int, *, causal: bool) -> nn.Module:
    """The attention of one layer; of the further ones of an encoder with a decoder those of each begin anew.

    Random features differ from layer to layer and depend on nothing else.
    """
    own = config.pattern[layer % config.layers % len(config.pattern)] if config.pattern else AttentionSettings()
    config = config.of_layer(layer % config.layers)
    encoding, taken = find_position(config.position), signature(ATTENTIONS[config.attention]).parameters
    settings: dict[str, Any] = {}
    if isinstance(encoding, InAttention):
        settings |= encoding.of(taken)
    elif issubclass(encoding, ScorePositions):
        if "score_positions" not in taken:
            raise ValueError(
                f'position is "{config.position}", a part of the score of each query with each key, but the attention '
                f'"{config.attention}" takes none (linear attention sums over the keys before it knows the query, so '
                'there are no scores); give attention="softmax", or a position such as "rope-before" or "learned"'
            )
        width = config.dim // config.heads
        sizes = {"dim": config.dim, "heads": config.heads, "head_dim": width, "max_length": config.max_length}
        settings["score_positions"] = encoding(**given(encoding, sizes | {"causal": causal}))
    plain = {name: getattr(ModelConfig, name) for name in ADDITIONS}
    settings |= {name: getattr(config, name) for name, value in plain.items() if getattr(config, name) != value}
    told = [name for name in ("feature_map", "num_features", "redraw_every") if getattr(own, name) is not None]
    told += ["denominator"] * (config.denominator != ModelConfig.denominator)
    # A kernel that took no notice of its positions would be another model than was asked for.
    return make_attention(
        config.attention,
        config.dim,
        config.heads,
        causal=causal,
        needed=[*settings, *told],
        **{
            "rope": "none",
            "alibi": False,
            "rope_angles": "fixed",
            "feature_map": config.feature_map,
            "num_features": config.num_features,
            "denominator": config.denominator,
            "dropout": config.dropout,
            "redraw_every": config.redraw_every,
            "seed": config.feature_seed * 1000 + layer,
        }
        | {name: value for name, value in plain.items() if value is not None}
        | settings,
    )


class Block(nn.Module):
    """x + attention(norm(x)), then, in a decoder, x + attention(norm(x), memory), then x + MLP(norm(x))."""

    def __init__(self, config: ModelConfig, attention: nn.Module, cross_attention: nn.Module | None = None) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.dim)
        self.attention = attention
        self.cross_attention = cross_attention
        self.cross_attention_norm = None if cross_attention is None else nn.LayerNorm(config.dim)
        self.mlp_norm = nn.LayerNorm(config.dim)
        hidden = config.mlp_ratio * config.dim if config.mlp_width is None else config.mlp_width
        self.mlp = nn.Sequential(
            nn.Linear(config.dim, hidden), nn.GELU(), nn.Linear(hidden, config.dim), nn.Dropout(config.dropout)
        )

    def forward(
        self,
        x: Tensor,
        *,
        key_padding_mask: Tensor | None = None,
        segment_ids: Tensor | None = None,
        memory: Tensor | None = None,
        memory_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """(B, N, dim) → (B, N, dim); ``memory`` (B, K, dim) is what the cross-attention reads."""
        packed = {} if segment_ids is None else {"segment_ids": segment_ids}
        x = x + self.attention(self.attention_norm(x), key_padding_mask=key_padding_mask, **packed)
        if self.cross_attention is not None and self.cross_attention_norm is not None:
            x = x + self.cross_attention(
                self.cross_attention_norm(x), context=memory, key_padding_mask=memory_padding_mask
            )
        return x + self.mlp(self.mlp_norm(x))

    def remember(self, context: Tensor, key_padding_mask: Tensor | None = None) -> Any:
        """What :meth:`advance` needs of the context (B, K, dim) that the cross-attention reads."""
        attention: Any = self.cross_attention
        _check_has(attention, ("remember", "recall"), "decoding")
        return attention.remember(context, key_padding_mask)

    def advance(
        self, x: Tensor, state: Any, memory: Any = None, sources: int = 0, key_padding_mask: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """The tokens ``x`` (B, N, dim) that follow those in ``state``, None for no tokens; (B, N) bool is their mask.

        In a decoder ``memory`` is what the cross-attention remembers of so many ``sources``; B is a multiple of them,
        and as many sequences each, which follow one another, read one source.
        """
        attention: Any = self.attention
        _check_has(attention, ("prefill", "step"), "generation")
        normed = self.attention_norm(x)
        if state is not None and key_padding_mask is None and x.shape[1] == 1:
            y, new_state = attention.step(normed, state)
        else:
            given = {"key_padding_mask": key_padding_mask, "state": state}
            y, new_state = attention.prefill(normed, **{name: x for name, x in given.items() if x is not None})
        x = x + y
        if self.cross_attention is not None and self.cross_attention_norm is not None:
            # Without positions the sequences of one source are as many queries, so it is there once.
            across: Any = self.cross_attention
            queries = self.cross_attention_norm(x).reshape(sources, -1, x.shape[-1])
            x = x + across.recall(queries, memory).reshape(x.shape)
        return x + self.mlp(self.mlp_norm(x)), new_state


def _check_has(attention: Any, methods: tuple[str, str], what: str) -> None:
    """Raises ValueError unless it goes on token by token, as :class:`linear_rope.LinearRoPEAttention` does."""
    if not all(hasattr(attention, name) for name in methods):
        raise ValueError(
            f"{type(attention).__name__} has no {' and '.join(methods)}, which {what} needs; choose an attention that "
            "has them, such as linear"
        )


def positions_of(config: ModelConfig, kind: type[nn.Module]) -> Any:
    """The module of the position encoding if it is one of this kind, or None."""
    encoding = find_position(config.of_layer(0).position)  # all layers have one
    if isinstance(encoding, InAttention) or not issubclass(encoding, kind):
        return None
    names = ("vocab_size", "dim", "layers", "max_length", "initial_std")
    return encoding(**given(encoding, {name: getattr(config, name) for name in names}))


class Embedding(nn.Module):
    """Token embedding and absolute positions; also the output projection, whose weights are tied to it."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocab_size, config.dim)
        self.positions: EmbeddingPositions | None = positions_of(config, EmbeddingPositions)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        x = self.tokens(tokens)
        return x if self.positions is None else self.positions.embed(x, tokens, positions)

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.tokens.weight)


class Stack(nn.Module):
    """What every model is made of: blocks one after another, what positions add to each, and a last norm."""

    blocks: nn.ModuleList
    block_positions: BlockPositions | None
    norm: nn.LayerNorm

    def stack(self, config: ModelConfig, blocks: Iterable[Block]) -> None:
        """Make the parts, behind those that the model has already, and initialise all of them."""
        self.block_positions = positions_of(config, BlockPositions)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(config.dim)
        check_weights_are_known(self)
        initialise(self, config)

    def through_blocks(self, x: Tensor, positions: Tensor, **masks: Tensor | None) -> Tensor:
        """(B, N, dim) → (B, N, dim), before the last norm; ``masks`` are those that :class:`Block` takes."""
        added = None if self.block_positions is None else self.block_positions(positions)
        for layer, block in enumerate(self.blocks):
            x = block(_with(added, layer, x), **masks)
        return x

    def advance(
        self,
        x: Tensor,
        positions: Tensor,
        states: Sequence[Any],
        memories: Sequence[Any] | None = None,
        sources: int = 0,
        key_padding_mask: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Any, ...]]:
        """As :meth:`through_blocks`, of the tokens that follow those in ``states``; see :meth:`Block.advance`.

        Raises:
            ValueError: something was put around the blocks.
        """
        added = None if self.block_positions is None else self.block_positions(positions)
        new_states = []
        for layer, block in enumerate(self.unwrapped_blocks()):
            memory = None if memories is None else memories[layer]
            x, state = block.advance(_with(added, layer, x), states[layer], memory, sources, key_padding_mask)
            new_states.append(state)
        return x, tuple(new_states)

    def unwrapped_blocks(self) -> list[Block]:
        """The blocks, if nothing was put around them. Raises ValueError if something was."""
        for block in self.blocks:
            if not isinstance(block, Block):
                raise ValueError(
                    f"a block is a {type(block).__name__}; generate from a model whose blocks are not wrapped "
                    "(compiled, say)"
                )
        return list(self.blocks)  # type: ignore[arg-type]


def _with(added: Tensor | None, layer: int, x: Tensor) -> Tensor:
    """The input of a block, with what positions add to it."""
    return x if added is None else x + added[layer].to(x.dtype)


def initialise(model: nn.Module, config: ModelConfig) -> None:
    """Initialise every weight from a generator of its own, named by ``config.seed`` and the parameter's name.

    So two models that differ in some modules start with equal weights in all that they share. Matrices are
    N(0, initial_std²), those of gates and convolutions too, and those that write to the residual stream over
    √(2·layers) (GPT-2); biases 0. Other vectors, as those of norms, stay as their modules made them.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.is_meta:  # there are no values to draw
                continue
            if parameter.dim() < 2:
                if name.endswith("bias"):
                    parameter.zero_()
                continue
            writes_to_residual = name.endswith((".out.weight", ".mlp.2.weight"))
            std = config.initial_std / math.sqrt(2 * config.layers) if writes_to_residual else config.initial_std
            digest = hashlib.sha256(f"{config.seed}/{name}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
            parameter.copy_(torch.randn(parameter.shape, generator=generator, device="cpu") * std)


def check_tokens(tokens: Tensor, name: str, key_padding_mask: Tensor | None) -> None:
    """Raises ValueError unless ``tokens`` is a (B, N) int64 tensor, N at least 1, and the mask fits it."""
    if not isinstance(tokens, Tensor):
        raise ValueError(f"{name} is of type {type(tokens).__name__}; give a tensor (batch, length) of torch.int64")
    if tokens.dim() != 2 or tokens.dtype != torch.int64 or tokens.shape[1] == 0:
        raise ValueError(
            f"{name} has shape {tuple(tokens.shape)} and dtype {tokens.dtype}; give (batch, length) of torch.int64, "
            "length 1 or more"
        )
    check_padding_mask(key_padding_mask, *tokens.shape)
