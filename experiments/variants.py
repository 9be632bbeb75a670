"""The variants of a comparison: every attention kernel with every way of telling it positions.

Names are `<kernel>-<position>`. A kernel is an attention, or linear attention's feature map. A new one of the project's
is an entry in variants.toml, besides linear_rope's registry, and so is a position. One of an installed package, or that
a ``--plugin`` module adds to linear_rope's ``FEATURE_MAPS``, ``ATTENTIONS`` or ``POSITIONS``, needs none. A name may go
on with settings that differ from the comparison's configuration: `favor+-rope-after@redraw_every=100@num_features=128`.
"""

import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.config import OF_ATTENTION, Config, read_toml, value_of
from experiments.config import SETTINGS as KINDS
from experiments.extensions import Registry, choices

_WORDS = read_toml(Path(__file__).with_suffix(".toml"))
_KERNELS: dict[str, str] = _WORDS["kernels"]
_POSITIONS: dict[str, str] = _WORDS["positions"]
RANDOM_KERNELS = tuple(kernel for kernel in _KERNELS if kernel.startswith("favor+"))
"""those with random features"""
SAME_WITHOUT_POSITIONS = {"elu+1+paired": "elu+1"}
"""kernels that are another one wherever RoPE does not rotate the mapped queries and keys"""
WITHOUT_MAP = ("retention", "delta")
"""linear kernels without a feature map: nothing is rotated before it"""
NOT_AFTER = ("softmax", "favor+window")
"""kernels that have exact scores: nothing is rotated after a map"""
OF_SCORES: list[str] = _WORDS["of_scores"]
PEER = "performer-pytorch"
"""the kernel and the name of the variant whose attention is another library's"""
FORM = "each setting of a variant is @name=value, one behind the other: softmax-rope@dim=64@heads=2"
OF_ROPE = ("rope_base", "rope_fraction")
SIZES = ("layers", "dim", "heads", "context")
"""settings that make a model of another size, or have it read more; their variants are compared with each other"""
OF_MODEL = (*SIZES, "learning_rate")
"""settings of all layers alike"""
SETTINGS = (
    *(*SIZES, "learning_rate", "num_features", "redraw_every", "denominator"),
    *OF_ATTENTION,
)
"""what may differ between the variants of a comparison: the batches, their number and the text may not

So the context may differ where it only says how much is read of each text: of labelled texts."""


@dataclass(frozen=True)
class Variant:
    """One variant. ``baseline`` is what its gain is measured against: the same kernel without positions, or itself.

    With settings it is the same variant without them; those in ``SIZES`` the baseline has too.
    """

    name: str
    kernel: str
    position: str
    baseline: str
    description: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """values of Config that differ from the comparison's"""
    pattern: tuple[str, ...] = ()
    """of a hybrid the variant of each layer, over and over; else all layers are as this one"""

    def config(self, config: Config) -> Config:
        """The configuration that this variant is trained with in a comparison. Raises ValueError if they do not fit."""
        try:
            own = replace(config, **self.settings)
        except ValueError as error:
            raise ValueError(f"--variants: {self.name}: {error}") from None
        if self.pattern and own.layers % (count := len(self.pattern)):
            raise ValueError(
                f"--variants: {self.name} is a pattern of {count} layers, and layers is {own.layers}; give --layers "
                f"{count} or a multiple of it, or @layers={count} behind the name"
            )
        return replace(config, **of_all_layers(self.settings, self.pattern))


def of_all_layers(settings: Mapping[str, Any], pattern: Collection[str]) -> dict[str, Any]:
    """The settings of a variant that its model's configuration has.

    The layers of a hybrid have the others in their names, those that take them.
    """
    return {name: value for name, value in settings.items() if name in OF_MODEL or not pattern}


NOTHING: tuple[tuple[Collection[str], Callable[[Variant], bool], str], ...] = (
    (
        ("num_features", "redraw_every"),
        lambda v: v.kernel in (*_KERNELS, PEER) and v.kernel not in RANDOM_KERNELS,
        "{0.kernel} has no random features of this suite's, so {1} says nothing; choose from the kernels "
        + ", ".join(RANDOM_KERNELS),
    ),
    (
        ("decay",),
        lambda v: v.position == "alibi",
        "alibi is a decay itself; leave the setting out, or choose another position",
    ),
    (OF_ATTENTION, lambda v: v.kernel == PEER, "{0.kernel} has no {1}; leave it out, or choose another variant"),
    (
        ("beta_range",),
        lambda v: v.kernel in _KERNELS and v.kernel != "delta",
        "{0.kernel} has no β, which is the delta rule's; leave beta_range out, or choose a delta variant",
    ),
    (
        ("qk_norm",),
        lambda v: v.kernel == "delta",
        "delta has queries and keys of length 1 anyway, so qk_norm says nothing; leave it out",
    ),
    (
        ("window",),
        lambda v: v.kernel in _KERNELS and v.kernel not in NOT_AFTER,
        "{0.kernel} keeps no tokens that a window could end at, so {1} says nothing; leave it out, or choose a softmax "
        "variant",
    ),
    (
        ("denominator",),
        lambda v: v.kernel in WITHOUT_MAP,
        "{0.kernel} has no denominator, so the setting says nothing; leave it out",
    ),
    (
        ("pair_denominator",),
        lambda v: v.kernel in (*WITHOUT_MAP, *NOT_AFTER),
        "{0.kernel} has no denominator that pairs fade in, so {1} says nothing; leave it out",
    ),
    (
        ("denominator",),
        lambda v: not v.position.endswith("-after"),
        "the denominator is a question of RoPE after the map; leave it out, or choose a rope-after variant",
    ),
    (
        OF_ROPE,
        lambda v: v.position in _POSITIONS and not v.position.startswith(("rope-", "selective-", "xpos", "pope")),
        "the position {0.position} does not turn by RoPE's angles, so {1} says nothing; leave it out",
    ),
    (
        ("rope_fraction",),
        lambda v: v.position in ("xpos", "selective-before", "selective-after"),
        "{0.position} turns every pair of channels; leave rope_fraction out, or choose a rope variant",
    ),
    (
        ("rope_phase",),
        lambda v: v.position != "pope" and (v.kernel in WITHOUT_MAP or not v.position.endswith("-after")),
        "{0.name} has a phase in its projections already, or none, so rope_phase says nothing; choose softmax-pope, or "
        "RoPE after a feature map",
    ),
)
"""settings, the variants of which they would change nothing or cannot be, and what is said then"""


def _go_together(kernel: str, position: str) -> bool:
    if position in OF_SCORES:
        return kernel == "softmax"
    if kernel in NOT_AFTER:
        return not position.endswith("-after")
    if kernel in WITHOUT_MAP:
        return not position.endswith("-before")
    return kernel not in SAME_WITHOUT_POSITIONS or position.endswith("-after")


def _built_in() -> Iterator[Variant]:
    others = _WORDS["others"]
    for kernel, kernel_text in _KERNELS.items():
        for position, position_text in _POSITIONS.items():
            if _go_together(kernel, position):
                name = f"{kernel}-{position.removesuffix('-before') if kernel == 'softmax' else position}"
                baseline = f"{SAME_WITHOUT_POSITIONS.get(kernel, kernel)}-none"
                yield Variant(name, kernel, position, baseline, f"{kernel_text} {others.get(name, position_text)}")
    yield Variant(PEER, PEER, "rope-before", PEER, others[PEER])
    for name, row in _WORDS["hybrids"].items():
        kernel, position = re.fullmatch("(hybrid-[^-]*)-?(.*)", name).groups()  # type: ignore[union-attr]
        baseline = f"{kernel}-none" if position else name
        said = " and ".join(f"{count} of {layer}" for layer, count in row["layers"].items())
        text = f"A hybrid, whose layers are {said} by turns. {row['text']}".strip()
        pattern = (layer for layer, count in row["layers"].items() for _ in range(count))
        yield Variant(name, kernel, position or "rope", baseline, text, pattern=tuple(pattern))


VARIANTS: Registry[Variant] = Registry(
    "variant", "linear_rope.variants", {variant.name: variant for variant in _built_in()}
)
INSTALLED_MAPS: Registry[Any] = Registry("feature map", "linear_rope.feature_maps", {})
INSTALLED_ATTENTIONS: Registry[Any] = Registry("attention", "linear_rope.attentions", {})
INSTALLED_POSITIONS: Registry[Any] = Registry("position", "linear_rope.positions", {})


def _from_outside() -> dict[str, Variant]:
    """The variants of kernels and positions that are not the project's.

    A model refuses a position that its attention cannot take.
    """
    attentions = [*INSTALLED_ATTENTIONS, *_added("attention", "ATTENTIONS")]
    kernels = dict.fromkeys([*INSTALLED_MAPS, *_added("features", "FEATURE_MAPS"), *attentions])
    positions = dict.fromkeys([*INSTALLED_POSITIONS, *_added("positions", "POSITIONS")])
    others = {name: f"The position {name}, not the project's." for name in positions if name not in _POSITIONS}
    found = {}
    for kernel in dict.fromkeys([*(_KERNELS if others else ()), *kernels]):
        what = "The attention" if kernel in attentions else "Linear attention with the feature map"
        kernel_text = _KERNELS.get(kernel, f"{what} {kernel}, not the project's.")
        for position, text in ({} if kernel in _KERNELS else _POSITIONS).items() | others.items():
            name = f"{kernel}-{position}"
            if kernel != "linear" and (kernel in attentions or _go_together(kernel, position)):
                found[name] = Variant(name, kernel, position, f"{kernel}-none", f"{kernel_text} {text}")
    return found


def _added(package: str, registry: str) -> list[str]:
    """What is in a registry of linear_rope, which a plugin that adds to it has imported: PyTorch takes long to load."""
    return list(getattr(sys.modules.get(f"linear_rope.{package}.registry"), registry, ()))


def variant_names() -> list[str]:
    """Every name of a variant without settings."""
    return [*VARIANTS, *_from_outside()]


def get_variant(name: str) -> Variant:
    """The variant of a name, with its settings.

    Raises ValueError that names what is unknown, or does not fit the variant, and lists what there is.
    """
    base, *parts = name.split("@")
    variant = _without_settings(base)
    settings: dict[str, Any] = {}
    for part in parts:
        setting, equals, text = part.partition("=")
        try:
            if not equals or "=" in text:
                raise ValueError(f"{part!r} is no setting; {FORM}")
            if setting not in SETTINGS:
                raise ValueError(f"a variant has no setting {setting!r}; {choices(setting, list(SETTINGS))}")
            if setting in settings:
                raise ValueError(f"{setting} is set twice; set it once")
            settings[setting] = value_of(setting, KINDS[setting], text, is_text=True)
            if not variant.pattern:
                if why := says_nothing(setting, variant):
                    raise ValueError(why)
            elif setting not in OF_MODEL:
                variant = replace(variant, pattern=_with_setting(variant.pattern, setting, part))
        except ValueError as error:
            raise ValueError(f"--variants: {name}: {error}") from None
    if not settings:
        return variant
    sizes = "".join(f"@{part}" for part in parts if part.partition("=")[0] in SIZES)
    only_sizes = settings.keys() <= set(SIZES)
    described = ", ".join(f"{setting} {value}" for setting, value in settings.items())
    return replace(
        variant,
        name=name,
        baseline=(variant.baseline if only_sizes else base) + sizes,
        description=f"{variant.description} Here with {described}.",
        settings=settings,
    )


def _with_setting(pattern: Iterable[str], setting: str, part: str) -> tuple[str, ...]:
    """A pattern with one more setting: of the layers that have it already, or else of all that take it.

    Raises ValueError if none does.
    """
    if any(f"@{setting}=" in layer for layer in pattern):
        layers = [re.sub(f"@{setting}=[^@]*", f"@{part}", layer) for layer in pattern]
        return tuple(get_variant(layer).name for layer in layers)
    layers = [f"{layer}@{part}" if is_variant(f"{layer}@{part}") else layer for layer in pattern]
    if layers == [*pattern]:
        get_variant(f"{layers[0]}@{part}")  # says why not
    return tuple(layers)


def _without_settings(name: str) -> Variant:
    outside = {} if name in VARIANTS else _from_outside()
    if name not in VARIANTS and name not in outside:
        why = _why_not(name)
        raise ValueError(f"--variants: there is no variant {name!r}{why}; {choices(name, [*VARIANTS, *outside])}")
    variant = outside[name] if name in outside else VARIANTS[name]
    for installed, part in _parts(variant.kernel, variant.position):
        if part in installed:
            installed[part]  # one that cannot be loaded is refused here
    return variant


def _why_not(name: str) -> str:
    """Why a kernel and a position of the project do not go together, or how settings are given; else nothing."""
    if "=" in name:
        return f" ({FORM})"
    kernel, position = next(((k, p) for k in _KERNELS for p in OF_SCORES if name == f"{k}-{p}"), ("softmax", ""))
    if kernel == "softmax":
        return ""
    if position == "xpos":
        return f", for xpos has a decay for each pair of channels and {kernel} one a head (give @decay=retnet)"
    if position == "pope":
        return (
            f", for pope is of softmax's scores, and {kernel} has none (elu+1+paired-rope-after weighs by such a sum)"
        )
    return f", for {position} is a part of the score of each query with each key, and {kernel} has no scores"


def _parts(kernel: str, position: str) -> list[tuple[Registry[Any], str]]:
    return [(INSTALLED_MAPS, kernel), (INSTALLED_ATTENTIONS, kernel), (INSTALLED_POSITIONS, position)]


def modules_of(variant: str, kernel: str, position: str) -> set[str | None]:
    """The modules from outside that a variant of ``get_variant`` and its parts came from; None is in it for others."""
    name = variant.partition("@")[0]
    return {VARIANTS.origin(name), *(installed.origin(part) for installed, part in _parts(kernel, position))}


def is_variant(name: str) -> bool:
    """Whether there is such a variant."""
    try:
        get_variant(name)
    except ValueError:
        return False
    return True


def says_nothing(setting: str, variant: Variant) -> str | None:
    """Why a setting would change nothing of a variant, with what would do; None where it says something."""
    return next(
        (why.format(variant, setting) for names, holds, why in NOTHING if setting in names and holds(variant)), None
    )


def without_rate(name: str) -> str:
    """A variant's name without its learning rate: a run with any takes as long."""
    return re.sub("@learning_rate=[^@]*", "", name)


def has_own_rate(name: str) -> bool:
    """Whether a variant says what its learning rate is; of one that is not known here, its name does."""
    return "learning_rate" in get_variant(name).settings if is_variant(name) else without_rate(name) != name


def parse_variants(names: str) -> tuple[Variant, ...]:
    """The variants of a comma-separated list, in its order.

    Raises ValueError that names the unknown or repeated one and lists those that exist.
    """
    chosen: dict[str, Variant] = {}
    for name in (part.strip() for part in names.split(",")):
        variant = get_variant(name)
        if name in chosen:
            raise ValueError(f"--variants: {name} is named twice; name each variant once")
        chosen[name] = variant
    return tuple(chosen.values())


def check_variants_differ(variants: Iterable[Variant], config: Config) -> None:
    """Raises ValueError if two variants are the same in a comparison with this configuration, trained twice.

    Settings in another order, a number written in another way, and a setting that says what the configuration says
    anyway make another name of the same variant.
    """
    names: dict[tuple[str, str, tuple[str, ...], Config], str] = {}
    for variant in variants:
        first = names.setdefault(
            (variant.kernel, variant.position, variant.pattern, variant.config(config)), variant.name
        )
        if first != variant.name:
            raise ValueError(
                f"--variants: {first} and {variant.name} are the same variant here; leave one of them out, or give "
                "them settings that differ"
            )
