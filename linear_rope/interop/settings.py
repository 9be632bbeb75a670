"""The shape of a model as JSON has it."""

from dataclasses import asdict, fields
from typing import Any

from linear_rope.model_config import AttentionSettings, ModelConfig
from linear_rope.positions import rope_scaling


def settings_of(shape: ModelConfig) -> dict[str, Any]:
    """What is not as by default in the shape of a model, as JSON has it."""
    given = {field.name: getattr(shape, field.name) for field in fields(shape)}
    given = {name: value for name, value in given.items() if value != getattr(ModelConfig, name)}
    if shape.rope_scaling is not None:
        given["rope_scaling"] = {"kind": type(shape.rope_scaling).__name__, **asdict(shape.rope_scaling)}
    if shape.pattern:
        layers = [asdict(each) for each in shape.pattern]
        given["pattern"] = [{name: value for name, value in each.items() if value is not None} for each in layers]
    return given


def shape_of(settings: dict[str, Any]) -> ModelConfig:
    """The other way round. Raises ValueError for settings that :class:`ModelConfig` does not have or refuses."""
    given = dict(settings)
    try:
        if scaling := given.get("rope_scaling"):
            kind = getattr(rope_scaling, scaling["kind"])
            given["rope_scaling"] = kind(**{name: value for name, value in scaling.items() if name != "kind"})
        given["pattern"] = tuple(AttentionSettings(**each) for each in given.get("pattern", ()))
        return ModelConfig(**given)
    except (TypeError, AttributeError) as error:
        raise ValueError(f"model is {settings}, which is no ModelConfig here ({error}); change it, or update") from None
