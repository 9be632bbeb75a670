"""RoFormer as ``transformers`` has it, with this library's attention in it."""

from typing import Any

import torch
from torch import Tensor, nn

from linear_rope.blocks import Block, check_tokens, initialise
from linear_rope.model import Encoder
from linear_rope.model_config import ModelConfig
from linear_rope.positions.segments import positions_within, segments_of

PROJECTIONS = ("query", "key", "value", "out")


class RoFormerEncoder(Encoder):
    """An :class:`linear_rope.Encoder` of RoFormer's blocks: the norm after each sum, biases, and types of tokens.

    Args:
        config: its shape; ``position="rope-before"`` and ``attention="softmax"`` make it RoFormer.
        token_types: rows of the table of token types.
        norm_eps: ε of the norms.
    """

    def __init__(self, config: ModelConfig, *, token_types: int = 2, norm_eps: float = 1e-12) -> None:
        super().__init__(config)
        self.token_types = nn.Embedding(token_types, config.dim)
        self.embedding_norm = nn.LayerNorm(config.dim)
        self.dropout = nn.Dropout(config.dropout)
        self.norm = nn.Identity()  # type: ignore[assignment]
        for block in self.blocks:
            for name in PROJECTIONS:
                projection = getattr(block.attention, name)
                setattr(block.attention, name, nn.Linear(projection.in_features, projection.out_features))
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = norm_eps
        initialise(self, config)  # what was made here too

    def forward(
        self,
        tokens: Tensor,
        key_padding_mask: Tensor | None = None,
        token_types: Tensor | None = None,
        *,
        segment_ids: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Tensor:
        """(B, N) int64 tokens, (B, N) bool mask, (B, N) int64 types, 0 by default → (B, N, dim) representations.

        A token's position is its place in the row, or in its segment, as in RoFormer, whatever the mask. The other
        arguments are those of :class:`linear_rope.CausalLM`.

        Raises:
            ValueError: tokens of another shape or dtype.
        """
        check_tokens(tokens, "tokens", key_padding_mask)
        types = self.token_types.weight[0] if token_types is None else self.token_types(token_types)
        x = self.dropout(self.embedding_norm(self.embedding.tokens(tokens) + types))
        segments = segments_of(segment_ids, cu_seqlens, tokens, key_padding_mask)
        places = torch.arange(tokens.shape[1], device=tokens.device)
        places = places if segments is None else positions_within(segments, None)
        for block in self.blocks:
            assert isinstance(block, Block)
            y = block.attention(x, key_padding_mask=key_padding_mask, positions=places, segment_ids=segments)
            x = block.attention_norm(x + y)
            x = block.mlp_norm(x + block.mlp(x))
        return x

    @classmethod
    def from_transformers(cls, model: Any, **settings: Any) -> "RoFormerEncoder":
        """The encoder with the weights of a ``transformers.RoFormerModel``, and its outputs.

        Args:
            model: the ``RoFormerModel``; its weights are copied.
            settings: of :class:`linear_rope.ModelConfig`, in place of RoFormer's: ``attention="linear"`` with
                ``position="rope-before"`` or ``"rope-after"`` puts its weights around linear attention.

        Raises:
            ValueError: another model, or one with parts that the encoder has not.
        """
        theirs = getattr(model, "config", None)
        if getattr(theirs, "model_type", None) != "roformer" or not hasattr(model, "embeddings"):
            raise ValueError(f"model is a {type(model).__name__}; give a transformers.RoFormerModel")
        assert theirs is not None
        for name, needed in {
            "hidden_act": "gelu",
            "rotary_value": False,
            "is_decoder": False,
            "embedding_size": theirs.hidden_size,
        }.items():
            if getattr(theirs, name) != needed:
                raise ValueError(f"{name} is {getattr(theirs, name)!r}; give a model whose {name} is {needed!r}")
        shape = {
            "vocab_size": theirs.vocab_size,
            "dim": theirs.hidden_size,
            "layers": theirs.num_hidden_layers,
            "heads": theirs.num_attention_heads,
            "mlp_width": theirs.intermediate_size,
            "max_length": theirs.max_position_embeddings,
            "dropout": float(theirs.hidden_dropout_prob),
            "attention": "softmax",
            "position": "rope-before",
        }
        encoder = cls(
            ModelConfig(**shape | settings), token_types=theirs.type_vocab_size, norm_eps=theirs.layer_norm_eps
        )
        encoder.to(model.embeddings.word_embeddings.weight.device)
        pairs = [
            (encoder.embedding.tokens, model.embeddings.word_embeddings),
            (encoder.token_types, model.embeddings.token_type_embeddings),
            (encoder.embedding_norm, model.embeddings.LayerNorm),
        ]
        for block, layer in zip(encoder.blocks, model.encoder.layer, strict=True):
            assert isinstance(block, Block)
            own, output = layer.attention.self, layer.attention.output
            projections = (own.query, own.key, own.value, output.dense)
            pairs += [(getattr(block.attention, name), x) for name, x in zip(PROJECTIONS, projections, strict=True)]
            pairs += [
                (block.attention_norm, output.LayerNorm),
                (block.mlp[0], layer.intermediate.dense),
                (block.mlp[2], layer.output.dense),
                (block.mlp_norm, layer.output.LayerNorm),
            ]
        with torch.no_grad():
            for mine, other in pairs:
                for name, parameter in mine.named_parameters():
                    parameter.copy_(getattr(other, name))
        return encoder.train(model.training)
