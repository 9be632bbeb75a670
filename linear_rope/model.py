"""Small pre-norm transformers whose attention and position encoding can be exchanged and nothing else.

Axis names: B batch, N length, dim model width.
"""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linear_rope.attention.registry import find_attention, make_attention
from linear_rope.checks import check_choice, check_padding_mask
from linear_rope.decoding import beam_search, reordered
from linear_rope.features.registry import find_feature_map
from linear_rope.functional.rotated_features import Denominator
from linear_rope.positions.absolute import EmbeddingPositions
from linear_rope.positions.blocks import BlockPositions
from linear_rope.positions.decay import DECAYS
from linear_rope.positions.registry import InAttention, find_position, has_table, make_positions
from linear_rope.positions.rope_scaling import RopeScaling, check_scaling
from linear_rope.positions.scores import ScorePositions
from linear_rope.positions.tokens import token_positions


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a model.

    Raises:
        ValueError: values that do not fit each other; the attention checks the rest.
    """

    vocab_size: int = 256
    """number of token ids; 256 for bytes"""
    dim: int = 128
    """model width"""
    layers: int = 2
    """number of blocks"""
    heads: int = 4
    """attention heads; divides dim"""
    max_length: int = 256
    """positions in the table of "learned" and "tupe"; no limit for the other encodings"""
    attention: str = "linear"
    """"softmax", "linear" (with ``feature_map``), or another of linear_rope.attention.registry"""
    feature_map: str = "favor+"
    """"favor+", "favor+hyperbolic", "favor+paired", "elu+1", "elu+1+paired", "relu", or another of
    linear_rope.features.registry; for linear attention"""
    num_features: int | None = None
    """M of the random feature maps; even; None takes the even number next to D·ln D"""
    position: str = "rope-after"
    """how positions enter. With every attention: "none"; "learned", "sinusoidal" and "complex", of the embeddings;
    "floater", of every block's input; "alibi"; "rope-before" and "selective-before". With a feature map "rope-after"
    and "selective-after". With softmax attention "shaw", "transformer-xl", "t5", "tupe", "deberta", "huang" and
    "xpos". Or another of linear_rope.positions.POSITIONS"""
    denominator: Denominator = "unrotated"
    """denominator of linear attention with RoPE after the map"""
    rope_base: float = 10000.0
    """θ_i = rope_base^(−2i/width)"""
    rope_scaling: RopeScaling | None = None
    """other angles for sequences longer than those of training, see linear_rope.positions.rope_scaling; no part of the
    weights"""
    decay: str = "none"
    """how much of the past each head keeps at each token: "none" for all of it, "fixed", "alibi", "retnet" or "gate",
    see linear_rope.positions.decay"""
    local_conv: int = 0
    """tokens in a weighted sum of values that is added to the heads' output; 0 for none"""
    short_conv: int = 0
    """tokens in a weighted sum of queries, keys and values that is added to each; 0 for none"""
    mlp_ratio: int = 4
    """hidden width of the MLP over dim"""
    mlp_width: int | None = None
    """hidden width of the MLP; None for mlp_ratio · dim"""
    dropout: float = 0.0
    """on the outputs of attention and MLP, in training"""
    redraw_every: int | None = None
    """training steps between redraws of random features; None draws once"""
    seed: int = 0
    """of the initial weights"""
    feature_seed: int = 0
    """of the random features; every layer draws its own"""
    initial_std: float = 0.02
    """standard deviation of the initial matrices; GPT-2's by default"""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "dim", "layers", "heads", "max_length", "mlp_ratio"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give 1 or more")
        if self.mlp_width is not None and self.mlp_width < 1:
            raise ValueError(f"mlp_width is {self.mlp_width}; give 1 or more, or None")
        if not 0 < self.initial_std < math.inf:
            raise ValueError(f"initial_std is {self.initial_std}; give a positive number")
        find_attention(self.attention)
        find_feature_map(self.feature_map)
        encoding = find_position(self.position)
        in_attention = encoding if isinstance(encoding, InAttention) else InAttention({})
        check_scaling(self.rope_scaling, rotates=in_attention.sets("rope"))
        if self.attention == "softmax" and self.position.endswith("-after"):
            kind = self.position.removesuffix("-after")
            raise ValueError(
                f'position is "{self.position}", but softmax attention has no feature map; give "{kind}-before"'
            )
        check_choice("decay", self.decay, ("none", *DECAYS))
        if in_attention.sets("decay") and self.decay != "none":
            raise ValueError(
                f'decay is "{self.decay}", but position is "{self.position}", a decay itself; give one of them'
            )


MakeAttention = Callable[[int], nn.Module]


@runtime_checkable
class Decoding(Protocol):
    """An attention that goes on token by token, as :class:`linear_rope.LinearRoPEAttention` does."""

    def prefill(self, x: Tensor) -> tuple[Tensor, Any]:
        """The output of the whole prompt (B, N, dim), and the state that :meth:`step` goes on from."""

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """The output of one token (B, 1, dim) more, and the state for the next step."""


@runtime_checkable
class Remembering(Protocol):
    """A cross-attention that reads a context once, as :class:`linear_rope.LinearRoPEAttention` does."""

    def remember(self, context: Tensor, key_padding_mask: Tensor | None = None) -> Any:
        """What :meth:`recall` needs of the context (B, K, dim)."""

    def recall(self, x: Tensor, memory: Any) -> Tensor:
        """The output of (B, N, dim) that read that context."""


def attention_of_layer(config: ModelConfig, layer: int, *, causal: bool) -> nn.Module:
    """The attention of one layer. Random features differ from layer to layer and depend on nothing else."""
    encoding, taken = find_position(config.position), signature(find_attention(config.attention)).parameters
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
        settings["score_positions"] = make_positions(encoding, causal=causal, **sizes)
    if config.decay != "none":
        settings["decay"] = config.decay
    if config.rope_scaling is not None:
        settings["rope_scaling"] = config.rope_scaling
    settings |= {name: getattr(config, name) for name in ("local_conv", "short_conv") if getattr(config, name)}
    # A kernel that took no notice of its positions would be another model than was asked for.
    return make_attention(
        config.attention,
        config.dim,
        config.heads,
        causal=causal,
        needed=settings,
        **{
            "rope": "none",
            "alibi": False,
            "rope_angles": "fixed",
            "rope_scaling": None,
            "decay": "none",
            "local_conv": 0,
            "short_conv": 0,
            "feature_map": config.feature_map,
            "num_features": config.num_features,
            "denominator": config.denominator,
            "rope_base": config.rope_base,
            "dropout": config.dropout,
            "redraw_every": config.redraw_every,
            "seed": config.feature_seed * 1000 + layer,
        }
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
        memory: Tensor | None = None,
        memory_padding_mask: Tensor | None = None,
    ) -> Tensor:
        """(B, N, dim) → (B, N, dim); ``memory`` (B, K, dim) is what the cross-attention reads."""
        x = x + self.attention(self.attention_norm(x), key_padding_mask=key_padding_mask)
        if self.cross_attention is not None and self.cross_attention_norm is not None:
            x = x + self.cross_attention(
                self.cross_attention_norm(x), context=memory, key_padding_mask=memory_padding_mask
            )
        return x + self.mlp(self.mlp_norm(x))

    def remember(self, context: Tensor, key_padding_mask: Tensor | None = None) -> Any:
        """What :meth:`advance` needs of the context (B, K, dim) that the cross-attention reads."""
        if not isinstance(self.cross_attention, Remembering):
            raise ValueError(
                f"{type(self.cross_attention).__name__} has no remember and recall, which decoding needs; choose an "
                "attention that has them, such as linear"
            )
        return self.cross_attention.remember(context, key_padding_mask)

    def advance(self, x: Tensor, state: Any, memory: Any = None, sources: int = 0) -> tuple[Tensor, Any]:
        """The tokens ``x`` (B, N, dim) that follow those in ``state``; N is 1 unless there are none yet (None).

        In a decoder ``memory`` is what the cross-attention remembers of so many ``sources``; B is a multiple of them,
        and as many sequences each, which follow one another, read one source.
        """
        if not isinstance(self.attention, Decoding):
            raise ValueError(
                f"{type(self.attention).__name__} has no prefill and step, which generation needs; choose an attention "
                "that has them, such as linear"
            )
        normed = self.attention_norm(x)
        y, new_state = self.attention.prefill(normed) if state is None else self.attention.step(normed, state)
        x = x + y
        if self.cross_attention is not None and self.cross_attention_norm is not None:
            # Without positions the sequences of one source are as many queries, so it is there once.
            across: Any = self.cross_attention
            queries = self.cross_attention_norm(x).reshape(sources, -1, x.shape[-1])
            x = x + across.recall(queries, memory).reshape(x.shape)
        return x + self.mlp(self.mlp_norm(x)), new_state


def positions_of(config: ModelConfig, kind: type[nn.Module]) -> Any:
    """The module of the position encoding if it is one of this kind, or None."""
    encoding = find_position(config.position)
    if isinstance(encoding, InAttention) or not issubclass(encoding, kind):
        return None
    names = ("vocab_size", "dim", "layers", "max_length", "initial_std")
    return make_positions(encoding, **{name: getattr(config, name) for name in names})


def _with(added: Tensor | None, layer: int, x: Tensor) -> Tensor:
    """The input of a block, with what positions add to it."""
    return x if added is None else x + added[layer].to(x.dtype)


class _Embedding(nn.Module):
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


class CausalLM(nn.Module):
    """A decoder-only language model: pre-norm blocks, GELU MLP, tied embedding.

    Args:
        config: its shape.
        attention: a function from the layer's number to its attention module (called as
            ``module(x, key_padding_mask=...)``), for kinds that ``config`` does not know.
    """

    def __init__(self, config: ModelConfig, attention: MakeAttention | None = None) -> None:
        super().__init__()
        self.config = config
        self.embedding = _Embedding(config)
        make = attention or (lambda layer: attention_of_layer(config, layer, causal=True))
        self.block_positions: BlockPositions | None = positions_of(config, BlockPositions)
        self.blocks = nn.ModuleList(Block(config, make(layer)) for layer in range(config.layers))
        self.norm = nn.LayerNorm(config.dim)
        initialise(self, config)

    def forward(self, tokens: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """Scores of the next token.

        Args:
            tokens: (B, N) int64.
            key_padding_mask: (B, N) bool, True at padding.

        Returns:
            (B, N, vocab_size) logits.

        Raises:
            ValueError: tokens of another shape or dtype, or more than a learned position table has.
        """
        check_tokens(tokens, "tokens", key_padding_mask)
        positions = token_positions(tokens.shape[1], key_padding_mask, tokens.device)
        x = self.embedding(tokens, positions)
        added = None if self.block_positions is None else self.block_positions(positions)
        for layer, block in enumerate(self.blocks):
            x = block(_with(added, layer, x), key_padding_mask=key_padding_mask)
        return self.embedding.logits(self.norm(x))

    @torch.no_grad()
    def generate(
        self, prompt: Tensor, length: int, *, temperature: float = 1.0, generator: torch.Generator | None = None
    ) -> Tensor:
        """Continue a prompt token by token; with linear attention each takes the same time and memory.

        Args:
            prompt: (B, N) int64, N at least 1.
            length: tokens to add.
            temperature: of the softmax that is sampled from; 0 takes the likeliest.
            generator: of the samples; None is PyTorch's global one.

        Returns:
            (B, N + length) int64.

        Raises:
            ValueError: an empty prompt, a negative length or temperature, more tokens than a learned position table
                has, attention modules that cannot step, or blocks that something else was put around.
        """
        check_tokens(prompt, "prompt", None)
        if length < 0 or temperature < 0:
            raise ValueError(f"length is {length} and temperature is {temperature}; give 0 or more of each")
        if has_table(self.config.position) and prompt.shape[1] + length - 1 > self.config.max_length:
            raise ValueError(
                f"length is {length} after a prompt of {prompt.shape[1]}, but the learned position table ends at "
                f"{self.config.max_length}; give a smaller length, or make the model with a larger max_length"
            )
        blocks = _not_wrapped(self.blocks)
        states: list[Any] = [None] * len(blocks)
        tokens, new = prompt, prompt
        for _ in range(length):
            start = tokens.shape[1] - new.shape[1]
            positions = torch.arange(start, tokens.shape[1], device=prompt.device)
            x = self.embedding(new, positions)
            added = None if self.block_positions is None else self.block_positions(positions)
            for layer, block in enumerate(blocks):
                x, states[layer] = block.advance(_with(added, layer, x), states[layer])
            logits = self.embedding.logits(self.norm(x[:, -1]))
            if temperature == 0:
                new = logits.argmax(-1, keepdim=True)
            else:
                new = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
            tokens = torch.cat((tokens, new), dim=1)
        return tokens


class Encoder(nn.Module):
    """A bidirectional encoder: every token sees every unpadded token.

    Args:
        config: its shape.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = _Embedding(config)
        self.block_positions: BlockPositions | None = positions_of(config, BlockPositions)
        self.blocks = nn.ModuleList(
            Block(config, attention_of_layer(config, layer, causal=False)) for layer in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.dim)
        initialise(self, config)

    def forward(self, tokens: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """(B, N) int64 tokens, (B, N) bool mask → (B, N, dim) representations.

        Raises:
            ValueError: tokens of another shape or dtype, or more than a learned position table has.
        """
        check_tokens(tokens, "tokens", key_padding_mask)
        positions = token_positions(tokens.shape[1], key_padding_mask, tokens.device)
        x = self.embedding(tokens, positions)
        added = None if self.block_positions is None else self.block_positions(positions)
        for layer, block in enumerate(self.blocks):
            x = block(_with(added, layer, x), key_padding_mask=key_padding_mask)
        return self.norm(x)


class DecoderState(NamedTuple):
    """What a decoder carries from token to token; :func:`linear_rope.decoding.reordered` takes any part of it.

    Attributes:
        own: of each block, the state of its self-attention; of B·K sequences. None before the first token.
        read: of each block, what its cross-attention remembers of the source; of B sources.
        sources: B.
        length: tokens so far.
    """

    own: tuple[Any, ...]
    read: tuple[Any, ...]
    sources: int
    length: int


class EncoderDecoder(nn.Module):
    """A sequence-to-sequence model: an :class:`Encoder`, and a causal decoder that reads its output in every block.

    Source and target share the vocabulary and one embedding. Cross-attention has no positions, decays or convolutions
    of its own: source and target positions are not on one axis.

    Args:
        config: the shape of encoder and decoder; ``layers`` each.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config)
        across = replace(config, position="none", rope_scaling=None, decay="none", local_conv=0, short_conv=0)
        self.block_positions: BlockPositions | None = positions_of(config, BlockPositions)
        self.blocks = nn.ModuleList(
            Block(
                config,
                attention_of_layer(config, config.layers + layer, causal=True),
                attention_of_layer(across, 2 * config.layers + layer, causal=False),
            )
            for layer in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.dim)
        initialise(self, config)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_padding_mask: Tensor | None = None,
        at: Tensor | None = None,
    ) -> Tensor:
        """Scores of the next target token.

        Args:
            source: (B, K) int64.
            target: (B, N) int64.
            source_padding_mask: (B, K) bool, True at padding. (A causal decoder needs none for padding at the end.)
            at: (B, N) bool, the places that are asked for; None for all.

        Returns:
            (B, N, vocab_size) logits, or (number of places, vocab_size) of those asked for, row by row.
        """
        memory = self.encoder(source, source_padding_mask)
        check_tokens(target, "target", None)
        positions = token_positions(target.shape[1], None, target.device)
        x = self.encoder.embedding(target, positions)
        added = None if self.block_positions is None else self.block_positions(positions)
        for layer, block in enumerate(self.blocks):
            x = block(_with(added, layer, x), memory=memory, memory_padding_mask=source_padding_mask)
        if at is not None:
            x = x[at]
        return self.encoder.embedding.logits(self.norm(x))

    def start(self, source: Tensor, source_padding_mask: Tensor | None = None) -> DecoderState:
        """Encode once what :meth:`step` decodes from: (B, K) int64, and (B, K) bool, True at padding.

        Raises:
            ValueError: as :meth:`forward`, or blocks or cross-attentions that cannot go on token by token.
        """
        memory = self.encoder(source, source_padding_mask)
        blocks = _not_wrapped(self.blocks)
        read = tuple(block.remember(memory, source_padding_mask) for block in blocks)
        return DecoderState((None,) * len(blocks), read, len(source), 0)

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """The tokens that follow those in ``state``, and the scores of the next ones.

        Args:
            tokens: (B·K, 1) int64, K sequences of the first source, then of the second, and so on; the first step may
                take (B·K, N).
            state: from :meth:`start` or the step before.

        Returns:
            (B·K, vocab_size) logits, and the state for the next step.
        """
        check_tokens(tokens, "tokens", None)
        last = state.length + tokens.shape[1]
        positions = torch.arange(state.length, last, device=tokens.device)
        x = self.encoder.embedding(tokens, positions)
        added = None if self.block_positions is None else self.block_positions(positions)
        own = []
        for layer, block in enumerate(_not_wrapped(self.blocks)):
            x, new = block.advance(_with(added, layer, x), state.own[layer], state.read[layer], state.sources)
            own.append(new)
        return self.encoder.embedding.logits(self.norm(x[:, -1])), state._replace(own=tuple(own), length=last)

    @torch.no_grad()
    def translate(
        self,
        source: Tensor,
        source_padding_mask: Tensor | None = None,
        *,
        begin: int,
        end: int,
        beams: int = 4,
        length_penalty: float = 0.6,
        longest: int,
    ) -> Tensor:
        """The best target that :func:`linear_rope.decoding.beam_search` finds for each source.

        The source is encoded once; a linear attention's state does not grow with the target.

        Args:
            source: (B, K) int64.
            source_padding_mask: (B, K) bool, True at padding.
            begin: the token that every target begins with; it is not part of the result.
            end: the token that ends a target.
            beams: how many sequences go on at a time; 1 takes the likeliest token each time.
            length_penalty: α of ((5 + length) / 6)^α.
            longest: most tokens of a result, its end among them.

        Returns:
            (B, N) int64, N up to ``longest``, with ``end`` behind the end.

        Raises:
            ValueError: as :meth:`start` and the search, or more tokens than a learned position table has.
        """
        if has_table(self.config.position) and longest > self.config.max_length:
            raise ValueError(
                f"longest is {longest}, but the learned position table ends at {self.config.max_length}; give a "
                "smaller one, or make the model with a larger max_length"
            )
        state = self.start(source, source_padding_mask)

        def step(tokens: Tensor, sequences: Tensor, sources: Tensor) -> Tensor:
            nonlocal state
            read = state.read if len(sources) == state.sources else reordered(state.read, sources)
            state = DecoderState(reordered(state.own, sequences), read, len(sources), state.length)
            logits, state = self.step(tokens, state)
            return logits

        return beam_search(
            step,
            len(source),
            begin=begin,
            end=end,
            beams=beams,
            length_penalty=length_penalty,
            longest=longest,
            device=source.device,
        )


def _not_wrapped(blocks: nn.ModuleList) -> list[Block]:
    """The blocks, if nothing was put around them. Raises ValueError if something was."""
    for block in blocks:
        if not isinstance(block, Block):
            raise ValueError(
                f"a block is a {type(block).__name__}; generate from a model whose blocks are not wrapped (compiled, "
                "say)"
            )
    return list(blocks)  # type: ignore[arg-type]


def initialise(model: nn.Module, config: ModelConfig) -> None:
    """Initialise every weight from a generator of its own, named by ``config.seed`` and the parameter's name.

    So two models that differ in some modules start with equal weights in all that they share. Matrices are
    N(0, initial_std²), those that write to the residual stream over √(2·layers) (GPT-2); biases 0; norms 1.
    """
    norms = {id(p) for module in model.modules() if isinstance(module, nn.LayerNorm) for p in module.parameters()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if id(parameter) in norms or parameter.is_meta:  # on the meta device there are no values to draw
                continue
            if parameter.dim() < 2:
                parameter.zero_()
                continue
            writes_to_residual = name.endswith((".out.weight", ".mlp.2.weight"))
            std = config.initial_std / math.sqrt(2 * config.layers) if writes_to_residual else config.initial_std
            digest = hashlib.sha256(f"{config.seed}/{name}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
            parameter.copy_(torch.randn(parameter.shape, generator=generator, device="cpu") * std)


def check_tokens(tokens: Tensor, name: str, key_padding_mask: Tensor | None) -> None:
    """Raises ValueError unless ``tokens`` is a (B, N) int64 tensor, N at least 1, and the mask fits it."""
    if tokens.dim() != 2 or tokens.dtype != torch.int64 or tokens.shape[1] == 0:
        raise ValueError(
            f"{name} has shape {tuple(tokens.shape)} and dtype {tokens.dtype}; give (batch, length) of torch.int64, "
            "length 1 or more"
        )
    check_padding_mask(key_padding_mask, *tokens.shape)
