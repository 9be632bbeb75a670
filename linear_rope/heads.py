"""What is put on top of an encoder: predicting masked tokens, and classifying texts."""

import torch.nn.functional as F
from torch import Tensor, nn

from linear_rope.blocks import initialise
from linear_rope.checks import check_at_least
from linear_rope.model import Encoder, places
from linear_rope.model_config import ModelConfig


class MaskedLM(nn.Module):
    """An encoder that predicts what its input hides (BERT: Devlin et al. 2018, arXiv 1810.04805, section 3.1).

    Args:
        config: of the encoder; its embedding is the output projection too.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.transform = nn.Linear(config.dim, config.dim)
        self.norm = nn.LayerNorm(config.dim)
        initialise(self, config)

    def forward(self, tokens: Tensor, at: Tensor | None = None, key_padding_mask: Tensor | None = None) -> Tensor:
        """Scores of the token that belongs at each place of (B, N) int64 tokens, (B, N, vocab_size).

        With ``at`` (B, N) bool, the places that are asked for: (number of places, vocab_size), row by row.
        """
        x = self.encoder(tokens, key_padding_mask)
        x = x if at is None else places(x, at)
        return self.encoder.embedding.logits(self.norm(F.gelu(self.transform(x))))


class Classifier(nn.Module):
    """An encoder whose mean over the tokens of a text is mapped to numbers: logits of classes, or a score.

    Args:
        config: of the encoder.
        outputs: how many numbers.
    """

    def __init__(self, config: ModelConfig, outputs: int) -> None:
        super().__init__()
        check_at_least(1, outputs=outputs)
        self.encoder = Encoder(config)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(config.dim, outputs)
        initialise(self, config)

    def forward(self, tokens: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        """(B, N) int64 tokens and the (B, N) bool mask of padding → (B, outputs)."""
        x = self.encoder(tokens, key_padding_mask)
        if key_padding_mask is None:
            return self.head(self.dropout(x.mean(1)))
        there = (~key_padding_mask).unsqueeze(-1)
        mean = x.masked_fill(~there, 0).sum(1) / there.sum(1).clamp(min=1)
        return self.head(self.dropout(mean))
