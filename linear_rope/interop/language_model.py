"""A :class:`linear_rope.CausalLM` as a model of transformers: trained, saved, loaded and generated from as its own are.

With linear attention the cache does not grow. What ``save_pretrained`` writes is read by
``AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=True)`` where this library is installed, or without
``trust_remote_code`` where this module was imported.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, Cache, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import LinearAttentionCacheLayerMixin
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from linear_rope.blocks import initialise
from linear_rope.decoding import reordered
from linear_rope.interop.settings import settings_of, shape_of
from linear_rope.interop.transformers import PACKED, UNPACK, packing
from linear_rope.model import CausalLM

FILE = "modeling_linear_rope"
"""the Python file beside saved weights, which names the classes"""
LOSS = ("num_items_in_batch", "ignore_index", "shift_labels")
"""arguments of transformers' loss"""


class LinearRoPEConfig(PreTrainedConfig):
    """Of :class:`LinearRoPEForCausalLM`.

    Args:
        model: fields of :class:`linear_rope.ModelConfig` that are not as by default.
        options: of every ``PreTrainedConfig``.

    Raises:
        ValueError: fields that it does not have, or that do not fit each other.
    """

    model_type = "linear_rope"

    def __init__(self, model: dict[str, Any] | None = None, **options: Any) -> None:
        shape = shape_of(model or {})
        names = {"AutoConfig": "LinearRoPEConfig", "AutoModelForCausalLM": "LinearRoPEForCausalLM"}
        own: dict[str, Any] = {"auto_map": {name: f"{FILE}.{kind}" for name, kind in names.items()}}
        own |= {"vocab_size": shape.vocab_size, "hidden_size": shape.dim, "num_hidden_layers": shape.layers}
        own |= {"num_attention_heads": shape.heads, "use_cache": options.pop("use_cache", True)}
        for name, value in own.items():
            setattr(self, name, value)
        self.model = settings_of(shape)
        # The matrix of embeddings is one with that of the output in the model itself.
        super().__init__(**{"tie_word_embeddings": False} | {x: y for x, y in options.items() if x not in own})

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = None) -> None:
        """Nothing: ``auto_map`` names the class, and what is saved imports it."""


class StateLayer(LinearAttentionCacheLayerMixin):
    """What all blocks carry from token to token, of :class:`linear_rope.model.LanguageModelState`."""

    is_compileable = False

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(self) -> None:
        self.state: Any = None
        self.has_previous_state[0] = False

    def update_recurrent_state(self, recurrent_states: Any, state_idx: int = 0, **_: Any) -> Any:
        self.state, self.has_previous_state[0] = recurrent_states, True
        return recurrent_states

    def lazy_initialization(self, *_: Any, **__: Any) -> None:
        """There is nothing to make before the first tokens."""

    def update_conv_state(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("the windows of convolutions are part of the state")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        if self.state is not None:
            self.state = reordered(self.state, beam_idx.to(self.state.position.device))

    def batch_select_indices(self, indices: Tensor) -> None:
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.state is not None:
            self.reorder_cache(torch.arange(len(self.state.position)).repeat_interleave(repeats))


class LinearRoPECache(Cache):
    """The ``past_key_values`` of :class:`LinearRoPEForCausalLM`; with linear attention of constant size."""

    def __init__(self) -> None:
        super().__init__(layers=[StateLayer()])
        self.reset()

    def reset(self) -> None:
        super().reset()
        self.length = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens so far, with those of padding."""
        return self.length

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.length + query_length, 0


class LinearRoPEForCausalLM(PreTrainedModel, GenerationMixin):
    """:class:`linear_rope.CausalLM`, as ``model``, with the calls of transformers' language models."""

    config_class = LinearRoPEConfig
    base_model_prefix = "model"
    _is_stateful = True
    _no_split_modules = ["Block"]  # noqa: RUF012
    config: LinearRoPEConfig

    def __init__(self, config: LinearRoPEConfig) -> None:
        super().__init__(config)
        with torch.device("cpu"):  # and not without numbers: each part initialises itself
            self.model = CausalLM(shape_of(config.model))
        self.post_init()

    @classmethod
    def from_model(cls, model: CausalLM) -> Self:
        """A copy of a model of this library. Raises ValueError if there is more in it than its configuration tells."""
        if not isinstance(model, CausalLM):
            raise ValueError(f"model is a {type(model).__name__}; give a CausalLM")
        found = cls(LinearRoPEConfig(settings_of(model.config)))
        found.model.to(next(model.parameters()))
        try:
            found.model.load_state_dict(model.state_dict())
        except RuntimeError:
            raise ValueError(
                "model has attentions of another kind than its configuration names; give one that ModelConfig describes"
            ) from None
        return found.train(model.training)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: LinearRoPECache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **options: Any,
    ) -> CausalLMOutputWithPast:
        """Scores, and the loss of labels that are given (−100 is left out, and they are shifted here).

        ``attention_mask`` is (B, length with the cache), 0 at padding, on either side; positions are counted from it.
        ``options`` are those of the loss, and ``seq_idx`` or ``cu_seq_lens_q`` of packed sequences, without a cache.

        Raises:
            ValueError: an argument that is not taken, another cache, or another mask.
        """
        packed = packing(options)
        taken = (*LOSS, *PACKED) if packed else LOSS
        for name, given in options.items():
            if name not in taken and given is not None and given is not False:
                raise ValueError(f"{name} was given, which LinearRoPEForCausalLM does not take; leave it out")
        if packed and (use_cache or past_key_values is not None):
            raise ValueError(
                "use_cache or past_key_values was given with packed sequences, which no cache goes on from; leave both "
                f"out, or {UNPACK}"
            )
        padding = _padding(attention_mask, input_ids)
        use_cache = self.config.use_cache and not self.training and not packed if use_cache is None else use_cache
        if use_cache and past_key_values is None:
            past_key_values = LinearRoPECache()
        if past_key_values is None:
            logits = self.model(input_ids, padding, **packed)[:, -logits_to_keep:]
        elif not isinstance(past_key_values, LinearRoPECache):
            kind = type(past_key_values).__name__
            raise ValueError(f"past_key_values is a {kind}; give a LinearRoPECache, or none")
        else:
            layer = past_key_values.layers[0]
            assert isinstance(layer, StateLayer)
            logits, state = self.model.prefill(input_ids, padding, state=layer.state, last=logits_to_keep or None)
            layer.update_recurrent_state(state)
            past_key_values.length += input_ids.shape[1]
        loss = None
        if labels is not None:
            of_loss = {name: options[name] for name in LOSS if name in options}
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **of_loss)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)

    def save_pretrained(self, save_directory: Any, *arguments: Any, **options: Any) -> None:
        """As transformers has it, and beside it the file that names the classes."""
        super().save_pretrained(save_directory, *arguments, **options)
        code = f"from {__name__} import LinearRoPEConfig, LinearRoPEForCausalLM\n"
        Path(save_directory, f"{FILE}.py").write_text(code, encoding="utf-8")

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = None) -> None:
        """Nothing, as of the configuration."""

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def _init_weights(self, module: Any) -> None:
        """Those of embeddings that transformers makes, for more tokens; those of the model are."""
        if module not in self.modules():
            initialise(module, self.model.config)

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.model.embedding.tokens

    def set_input_embeddings(self, value: Any) -> None:
        """Those of the output are the same; the configurations follow."""
        self.model.embedding.tokens = value
        self.model.config = replace(self.model.config, vocab_size=value.num_embeddings)
        self.config.model, self.config.vocab_size = settings_of(self.model.config), value.num_embeddings


def _padding(attention_mask: Tensor | None, input_ids: Tensor) -> Tensor | None:
    """(B, N) bool, True at those of ``input_ids`` that are padding; None without any."""
    if attention_mask is None:
        return None
    if attention_mask.dim() != 2 or attention_mask.shape[1] < input_ids.shape[1]:
        raise ValueError(
            f"attention_mask has shape {tuple(attention_mask.shape)}, and there are {tuple(input_ids.shape)} tokens; "
            "give (batch, length), 0 at padding"
        )
    padding = attention_mask[:, -input_ids.shape[1] :] == 0
    return padding if padding.any() else None


AutoConfig.register(LinearRoPEConfig.model_type, LinearRoPEConfig, exist_ok=True)
AutoModelForCausalLM.register(LinearRoPEConfig, LinearRoPEForCausalLM, exist_ok=True)
