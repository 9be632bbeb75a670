"""Small pre-norm transformers whose attention and position encoding can be exchanged and nothing else.

Axis names: B batch, N length, dim model width.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linear_rope.attention.projected import following
from linear_rope.blocks import Block, Embedding, MakeAttention, Stack, attention_of_layer, check_tokens
from linear_rope.checks import check_at_least
from linear_rope.decoding import beam_search, check_sampling, reordered, sample
from linear_rope.model_config import ACROSS, ADDITIONS, ModelConfig
from linear_rope.positions.registry import has_table
from linear_rope.positions.segments import positions_within, segments_of
from linear_rope.positions.tokens import token_positions
from linear_rope.states import savable


class _OneSequence(Stack):
    """What reads one sequence of tokens: an embedding, and blocks of one attention each."""

    causal: bool

    def __init__(self, config: ModelConfig, attention: MakeAttention | None = None) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config)
        make = attention or partial(attention_of_layer, config, causal=self.causal)
        self.stack(config, (Block(config, make(layer)) for layer in range(config.layers)))

    def forward(
        self,
        tokens: Tensor,
        key_padding_mask: Tensor | None = None,
        *,
        segment_ids: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """(B, N, vocab_size) logits of a :class:`CausalLM`, (B, N, dim) representations of an :class:`Encoder`.

        Args:
            tokens: (B, N) int64.
            key_padding_mask: (B, N) bool, True at padding.
            segment_ids: of packed sequences, as in :meth:`LinearRoPEAttention.forward`. What the last token of a
                segment predicts is not the first one of the next.
            cu_seqlens: the same for B = 1.

        Raises:
            ValueError: tokens of another shape or dtype, more than a learned position table has, or a segment that
                comes back.
        """
        check_tokens(tokens, "tokens", key_padding_mask)
        segments = segments_of(segment_ids, cu_seqlens, tokens, key_padding_mask)
        if segments is None:
            positions = token_positions(tokens.shape[1], key_padding_mask, tokens.device)
        else:
            positions = positions_within(segments, key_padding_mask)
        x = self.embedding(tokens, positions)
        x = self.through_blocks(x, positions, key_padding_mask=key_padding_mask, segment_ids=segments)
        return self._read(self.norm(x))

    def _read(self, x: Tensor) -> Tensor:
        return x


def check_table(config: ModelConfig, what: str, tokens: int, more: int = 0) -> None:
    """Raises ValueError if ``tokens`` and ``more`` of them are beyond a learned position table."""
    encodings = {config.of_layer(layer).position for layer in range(config.layers)}
    if any(map(has_table, encodings)) and tokens + more > config.max_length:
        raise ValueError(
            f"{what} {tokens}, but the learned position table ends at {config.max_length}; give a smaller length, "
            "or make the model with a larger max_length"
        )


@savable()
class LanguageModelState(NamedTuple):
    """What a language model carries from token to token; :func:`linear_rope.decoding.reordered` takes it.

    Attributes:
        blocks: of each block, the state of its attention.
        position: (B,) int64, position of the next token.
    """

    blocks: tuple[Any, ...]
    position: Tensor


class CausalLM(_OneSequence):
    """A decoder-only language model: pre-norm blocks, GELU MLP, tied embedding. It gives the scores of the next token.

    Args:
        config: its shape.
        attention: a function from the layer's number to its attention module (called as
            ``module(x, key_padding_mask=...)``), for kinds that ``config`` does not know.
    """

    causal = True

    def _read(self, x: Tensor) -> Tensor:
        return self.embedding.logits(x)

    def prefill(
        self,
        tokens: Tensor,
        key_padding_mask: Tensor | None = None,
        *,
        state: LanguageModelState | None = None,
        last: int | None = None,
    ) -> tuple[Tensor, LanguageModelState]:
        """The scores of the tokens that follow, and the state to go on from, with any number of tokens.

        Args:
            tokens: (B, N) int64, those after ``state``.
            key_padding_mask: (B, N) bool, True at padding.
            state: from the tokens before; None at the beginning.
            last: of how many tokens the scores are asked for, the last ones, 1 or more; None for all.

        Returns:
            (B, N or ``last``, vocab_size) logits, and the state.

        Raises:
            ValueError: as :meth:`forward`, ``last`` below 1, or attentions that cannot go on token by token.
        """
        check_at_least(1, last=1 if last is None else last)
        x, state = self._read_on(tokens, key_padding_mask, state)
        return self.embedding.logits(self.norm(x if last is None else x[:, -last:])), state

    def _read_on(
        self, tokens: Tensor, key_padding_mask: Tensor | None, state: LanguageModelState | None
    ) -> tuple[Tensor, LanguageModelState]:
        """(B, N, dim), before the last norm, and the state after these tokens."""
        check_tokens(tokens, "tokens", key_padding_mask)
        if not isinstance(state, LanguageModelState | None):
            raise ValueError(f"state is a {type(state).__name__}; give a LanguageModelState of this model, or None")
        positions, position = following(tokens, key_padding_mask, state)
        if positions is None:
            positions = token_positions(tokens.shape[1], key_padding_mask, tokens.device)
        before = (None,) * len(self.blocks) if state is None else state.blocks
        if len(before) != len(self.blocks):
            raise ValueError(f"state is of {len(before)} layers, the model has {len(self.blocks)}; give one of its own")
        x = self.embedding(tokens, positions)
        x, after = self.advance(x, positions, before, key_padding_mask=key_padding_mask)
        return x, LanguageModelState(after, position)

    @torch.no_grad()
    def generate(
        self,
        prompt: Tensor,
        length: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        seed: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Continue a prompt token by token; with linear attention each takes the same time and memory.

        Args:
            prompt: (B, N) int64, N at least 1.
            length: tokens to add.
            temperature: of the softmax that is sampled from, 1e-6 or more; 0 takes the likeliest.
            top_k: sample from this many of the likeliest tokens; None from all.
            top_p: sample from the fewest tokens, the likeliest first, whose probabilities reach this sum; see
                :func:`linear_rope.decoding.sampling_probabilities`, which ``top_k`` and ``top_p`` are defined by.
            seed: of a generator of the samples, 0 to 2^64 − 1; equal seeds give equal samples.
            generator: of the samples, in place of a seed; without either it is PyTorch's global one.

        Returns:
            (B, N + length) int64.

        Raises:
            ValueError: an empty prompt, a negative length, another number out of its range, a seed and a generator,
                more tokens than a learned position table has, attention modules that cannot step, or blocks that
                something else was put around.
        """
        check_tokens(prompt, "prompt", None)
        check_sampling(temperature, top_k, top_p)
        check_at_least(0, length=length)
        if seed is not None:
            if generator is not None:
                raise ValueError(f"seed is {seed} and a generator came too; give one of them")
            check_at_least(0, seed=seed)
            if seed >= 2**64:
                raise ValueError(f"seed is {seed}; give 0 to 2**64 - 1")
            generator = torch.Generator(prompt.device).manual_seed(int(seed))
        check_table(self.config, f"length is {length} after a prompt of", prompt.shape[1], length - 1)
        state: LanguageModelState | None = None
        tokens, new = prompt, prompt
        for _ in range(length):
            x, state = self._read_on(new, None, state)
            logits = self.embedding.logits(self.norm(x[:, -1]))
            new = sample(logits, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator)
            tokens = torch.cat((tokens, new), dim=1)
        return tokens


class Encoder(_OneSequence):
    """A bidirectional encoder: every token sees every unpadded token. The arguments are those of :class:`CausalLM`."""

    causal = False


@savable()
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


class EncoderDecoder(Stack):
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
        across = config.without(*(set(ADDITIONS) - set(ACROSS)))
        own = (attention_of_layer(config, config.layers + layer, causal=True) for layer in range(config.layers))
        reading = (
            attention_of_layer(across, 2 * config.layers + layer, causal=False) for layer in range(config.layers)
        )
        self.stack(config, (Block(config, *attentions) for attentions in zip(own, reading, strict=True)))

    def forward(
        self, source: Tensor, target: Tensor, source_padding_mask: Tensor | None = None, at: Tensor | None = None
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
        x = self.through_blocks(x, positions, memory=memory, memory_padding_mask=source_padding_mask)
        x = x if at is None else places(x, at)
        return self.encoder.embedding.logits(self.norm(x))

    def start(self, source: Tensor, source_padding_mask: Tensor | None = None) -> DecoderState:
        """Encode once what :meth:`step` decodes from: (B, K) int64, and (B, K) bool, True at padding.

        Raises:
            ValueError: as :meth:`forward`, or blocks or cross-attentions that cannot go on token by token.
        """
        memory = self.encoder(source, source_padding_mask)
        read = tuple(block.remember(memory, source_padding_mask) for block in self.unwrapped_blocks())
        return DecoderState((None,) * len(read), read, len(source), 0)

    def step(self, tokens: Tensor, state: DecoderState) -> tuple[Tensor, DecoderState]:
        """The tokens that follow those in ``state``, and the scores of the next ones.

        Args:
            tokens: (B·K, 1) int64, K sequences of the first source, then of the second, and so on; the first step may
                take (B·K, N).
            state: from :meth:`start` or the step before.

        Returns:
            (B·K, vocab_size) logits, and the state for the next step.

        Raises:
            ValueError: tokens that do not fit the state, or more than a learned position table has.
        """
        check_tokens(tokens, "tokens", None)
        if not isinstance(state, DecoderState):
            raise ValueError(f"state is a {type(state).__name__}; give the DecoderState of start or the step before")
        if len(tokens) % state.sources:
            raise ValueError(f"tokens are {len(tokens)} sequences for {state.sources} sources; give a multiple of that")
        last = state.length + tokens.shape[1]
        check_table(self.config, "the length of a target is", last)
        positions = torch.arange(state.length, last, device=tokens.device)
        x = self.encoder.embedding(tokens, positions)
        x, own = self.advance(x, positions, state.own, state.read, state.sources)
        return self.encoder.embedding.logits(self.norm(x[:, -1])), state._replace(own=own, length=last)

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
        """The best target that :func:`linear_rope.decoding.beam_search`, which has the other arguments, finds for each
        source.

        The source is encoded once; a linear attention's state does not grow with the target.

        Args:
            source: (B, K) int64.
            source_padding_mask: (B, K) bool, True at padding.

        Returns:
            (B, N) int64, N up to ``longest``, with ``end`` behind the end.

        Raises:
            ValueError: as :meth:`start` and the search, or more tokens than a learned position table has.
        """
        check_table(self.config, "longest is", longest)
        state = self.start(source, source_padding_mask)

        def step(tokens: Tensor, sequences: Tensor, sources: Tensor) -> Tensor:
            nonlocal state
            read = state.read if len(sources) == state.sources else reordered(state.read, sources)
            state = DecoderState(reordered(state.own, sequences), read, len(sources), state.length)
            logits, state = self.step(tokens, state)
            return logits

        options: dict[str, Any] = {"beams": beams, "length_penalty": length_penalty, "longest": longest}
        return beam_search(step, len(source), begin=begin, end=end, device=source.device, **options)


def places(x: Tensor, at: Tensor) -> Tensor:
    """The rows of ``x`` (B, N, dim) where ``at`` (B, N) bool is True. Raises ValueError for another dtype or shape."""
    if at.dtype != torch.bool or at.shape != x.shape[:2]:
        raise ValueError(
            f"at has dtype {at.dtype} and shape {tuple(at.shape)}; give torch.bool and {tuple(x.shape[:2])}"
        )
    return x[at]
