"""What a model of each variant costs, for ``list --sizes``."""

from dataclasses import replace

from rich.table import Table

from experiments.config import Config
from experiments.console import make_console
from experiments.report.tables import FLOPS, NOTHING, STATE, costs_in_words
from experiments.train.costs import costs
from experiments.train.models import Shape
from experiments.variants import get_variant, variant_names

LAYERS = 4
"""as many as most hybrids have in their pattern; those with more have one pattern"""


def list_sizes() -> int:
    """Print parameters, numbers of the state and operations for a token. Returns the exit status."""
    default, console = Config(), make_console()
    table = Table("variant", "layers", "parameters", STATE, FLOPS)
    for name in variant_names():
        try:
            variant = get_variant(name)
            config = replace(default, layers=max(LAYERS, len(variant.pattern)))
            found = costs(variant, variant.config(config), Shape(config.vocabulary_size, config.context))
        except (ImportError, ValueError):  # an extra or an installed package is not there
            table.add_row(name, *[NOTHING] * 4)
            continue
        table.add_row(name, str(config.layers), f"{found.parameters:,}", *costs_in_words(found.state, found.flops))
    console.print(
        f"Models of width {default.dim} with {default.heads} heads on {default.context} tokens. State numbers are what "
        "they carry from token to token, MFLOPs millions of additions and multiplications of a forward pass, both by "
        "formula; parameters are without tables of positions. Of settings and other sizes: run STUDY --variants "
        "NAME,NAME --dry-run.",
        soft_wrap=True,
    )
    console.print(table)
    return 0
