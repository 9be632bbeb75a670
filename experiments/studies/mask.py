"""Does redrawing the random features destroy what RoPE after the map has learnt?

python -m experiments run mask
"""

from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path

import pandas as pd
import torch

from experiments.analysis.claims import BITS_PER_BYTE, SEEN, Claim, ReadSample, Sample
from experiments.analysis.runs import Runs
from experiments.analysis.samples import from_table, paired, per_seed
from experiments.analysis.statistics import estimate, finished_values
from experiments.config import Config
from experiments.figures.settings import curves_by_setting, final_by_setting
from experiments.figures.style import FigureEntry, TableEntry, draw
from experiments.records.csv_files import TEXT, number, read_csv, to_csv, whole
from experiments.records.files import write_atomically
from experiments.records.schema import Comparison
from experiments.training.loop import evaluate
from experiments.training.objectives import NextToken
from experiments.training.trained_models import trained_models
from linear_rope.features import FavorPlus
from linear_rope.model import CausalLM

QUESTION = (
    "With FAVOR+, RoPE after the map is in expectation over the random features a fixed mask over distance, the same "
    "for all content (the decay experiment shows it). What a model learns beyond that lives in its one draw of "
    "features. So drawing new features in training should hurt RoPE after the map, and less so RoPE before it or no "
    "positions, whose expectation is softmax attention. And a finished model should lose more when its features are "
    "drawn anew."
)
METHOD = (
    "FAVOR+ models are trained from equal weights on equal batches, with features that are drawn once, or anew every "
    "1000 or every 100 steps. The finished models are then evaluated with new draws and no further training, on the "
    "same windows of the test split as with their own. The paired map, which uses every random "
    "feature as both members of a rotated pair, is trained beside the plain one."
)
NOT_SHOWN = (
    "Other numbers of features (with more of them one draw is nearer to the expectation), longer training, in which "
    "a model may get used to being redrawn, and other learning rates: one serves all variants, unless there is a table "
    "of them. Redrawing every 1000 steps happens once in a run this short. A model that is redrawn is trained with its "
    "last features for some steps before its loss is taken, at a small learning rate: what it then lacks is what it "
    "has not learnt again."
)

REDRAWS = ("", "@redraw_every=1000", "@redraw_every=100")
VARIANTS = (
    "favor+-none",
    "favor+-none@redraw_every=100",
    *(
        f"{variant}{redraw}"
        for variant in ("favor+-rope-before", "favor+-rope-after", "favor+paired-rope-after")
        for redraw in REDRAWS
    ),
)

NEW_DRAWS = 5
FIRST_NEW_DRAW = 10**6
"""above the number of any draw that training made"""
WINDOWS = 100
COLUMNS = {"variant": TEXT, "seed": whole(0, 10**6), "draw": whole(0, 10**6), "bits_per_byte": number(0)}
"""draw 0 is the model's own"""


def measure(root: Path, comparison: Comparison, objective: NextToken) -> list[str]:
    """Write redrawn.csv; returns sentences about what could not be measured."""
    notes: list[str] = []
    rows: list[tuple[str, int, int, float]] = []
    config = Config(**comparison.config)
    for name, seed, model in trained_models(root, comparison, objective, "the loss with new features", notes):
        if not any(isinstance(module, FavorPlus) for module in model.modules()):
            continue
        own = {key: value.clone() for key, value in model.state_dict().items()}
        for draw_number in range(NEW_DRAWS + 1):
            if draw_number:
                _redraw(model, FIRST_NEW_DRAW + draw_number)
            loss = evaluate(model, objective, "test", WINDOWS, config)["bits_per_byte"]
            rows.append((name, seed, draw_number, loss))
        model.load_state_dict(own)
    if rows:
        table = pd.DataFrame.from_records(rows, columns=list(COLUMNS))
        write_atomically(root / "redrawn.csv", to_csv(table, "%.9g"))
    return notes


def figures(
    root: Path, output: Path, comparison: Comparison, curves: pd.DataFrame, summary: pd.DataFrame
) -> list[FigureEntry | TableEntry]:
    directory = output / "figures"
    entries: list[FigureEntry | TableEntry] = []
    values = finished_values(root, comparison, curves)
    if not values.empty:
        entries.append(draw(directory, _FINAL, final_by_setting, values, summary, comparison))
        what = {"metric": "bits_per_byte", "quantity": "bits per byte", "start": 0.25}
        entries.append(draw(directory, _CURVES, curves_by_setting, curves, summary, comparison, **what))
    redrawn = _read(root)
    if redrawn is not None:
        entries.append(TableEntry("New features after training", redrawn_table(redrawn), _REDRAWN))
    return entries


def redrawn_table(redrawn: pd.DataFrame) -> pd.DataFrame:
    """A row of strings per variant: its loss with its own features, and what new ones add."""
    rows = []
    for name, mine in redrawn.groupby("variant", sort=False):
        own = mine[mine["draw"] == 0].set_index("seed")["bits_per_byte"]
        risen = mine[mine["draw"] > 0].groupby("seed")["bits_per_byte"].mean() - own
        found = estimate(risen.dropna().tolist())
        interval = f" [{found.low:+.3f}, {found.high:+.3f}]" if found.has_interval else ""
        rows.append(
            {
                "variant": name,
                "seeds": str(found.n),
                "own features": f"{own.mean():.3f}",
                "new features minus own": f"{found.mean:+.3f}{interval}",
            }
        )
    return pd.DataFrame(rows)


def _redraw(model: CausalLM, draw_number: int) -> None:
    for module in model.modules():
        if isinstance(module, FavorPlus):
            with torch.no_grad():
                module.redraw(draw_number)


def _read(root: Path) -> pd.DataFrame | None:
    path = root / "redrawn.csv"
    return read_csv(path, COLUMNS, key=["variant", "seed", "draw"]) if path.exists() else None


def _redrawn(every: int, sample: ReadSample) -> ReadSample:
    """The sample with a note on how often there was a redraw; None where training was too short for one."""

    def read(root: Path, comparison: Comparison, runs: Runs) -> Sample | None:
        steps = comparison.config["steps"]
        redraws = (steps - 1) // every
        found = sample(root, comparison, runs) if redraws else None
        if found is None:
            return None
        times = "once" if redraws == 1 else f"{redraws} times"
        note = f"features were redrawn {times}, the last time {steps - redraws * every} steps before the end"
        return replace(found, notes=(*found.notes, note))

    return read


def _hurt_more(variant: str, other: str, every: int) -> ReadSample:
    """What redrawing adds to the variant's test loss, minus what it adds to the other's, by seed."""
    redraw = f"@redraw_every={every}"
    metric = "test_bits_per_byte"
    difference = per_seed(
        (variant + redraw, variant, other + redraw, other),
        lambda a, b, c, d: a.last(metric) - b.last(metric) - (c.last(metric) - d.last(metric)),
    )
    return _redrawn(every, difference)


def _lost_when_redrawn(variant: str, other: str | None = None) -> ReadSample:
    """By seed: loss with new features (mean over draws) minus with its own; minus the other variant's, if there is
    one.
    """

    variants = (variant,) if other is None else (variant, other)

    def read(root: Path, comparison: Comparison) -> Callable[[int], float | None]:
        redrawn = _read(root)

        def difference(seed: int) -> float | None:
            risen = [None if redrawn is None else _risen(redrawn, name, seed) for name in variants]
            known = [value for value in risen if value is not None]
            return known[0] - sum(known[1:]) if len(known) == len(variants) else None

        return difference

    return from_table(variants, read)


def _risen(redrawn: pd.DataFrame, name: str, seed: int) -> float | None:
    losses = redrawn[(redrawn["variant"] == name) & (redrawn["seed"] == seed)].set_index("draw")["bits_per_byte"]
    if set(losses.index) != set(range(NEW_DRAWS + 1)):
        return None
    return float(losses.drop(0).mean() - losses[0])


DERIVED = "none found; derived: with FAVOR+, eq. 19 is in expectation a fixed mask over distance"
PERFORMER = (
    "Choromanski et al. 2020 (2009.14794) Fig. 5, in longer training: redrawing is needed to match the Transformer"
)
WITH_ROPE = f"none found with RoPE; {PERFORMER}"


def _claims() -> tuple[Claim, ...]:
    after, before, none, paired_map = (
        "favor+-rope-after",
        "favor+-rope-before",
        "favor+-none",
        "favor+paired-rope-after",
    )

    def redrawn(key: str, statement: str, published: str, variant: str, every: int, helps: bool) -> Claim:
        return Claim(
            key=key,
            statement=statement,
            published=published,
            quantity=f"test loss, {variant} redrawn every {every} steps minus never redrawn, bits per byte",
            region=(-inf, 0) if helps else (0, inf),
            margin=0.01,
            sample=_redrawn(every, paired(f"{variant}@redraw_every={every}", variant)),
            family="redraw",
            resolution=BITS_PER_BYTE,
        )

    return (
        redrawn("after-100", "Redrawing every 100 steps hurts RoPE after the map.", DERIVED, after, 100, False),
        redrawn("after-1000", "Redrawing every 1000 steps hurts RoPE after the map.", DERIVED, after, 1000, False),
        redrawn("before-100", "Redrawing every 100 steps helps RoPE before the map.", WITH_ROPE, before, 100, True),
        redrawn("none-100", "Redrawing every 100 steps helps without positions.", PERFORMER, none, 100, True),
        redrawn("paired-100", "Redrawing every 100 steps hurts the paired map.", DERIVED, paired_map, 100, False),
        Claim(
            key="after-more-than-before",
            statement="Redrawing hurts RoPE after the map more than RoPE before it.",
            published=DERIVED,
            quantity="what redrawing every 100 steps adds to the test loss, after minus before, bits per byte",
            region=(0, inf),
            margin=0.01,
            sample=_hurt_more(after, before, 100),
            family="redraw",
            resolution=BITS_PER_BYTE,
        ),
        Claim(
            key="paired-less-than-plain",
            statement="Redrawing hurts the paired map less than the plain one.",
            published="none found; our own hypothesis: a paired map has no cross terms to lose",
            quantity="what redrawing every 100 steps adds to the test loss, paired minus plain, bits per byte",
            region=(-inf, 0),
            margin=0.01,
            sample=_hurt_more(paired_map, after, 100),
            family="redraw",
            resolution=BITS_PER_BYTE,
        ),
        *(
            Claim(
                key=f"after-more-than-{other}-{every}",
                statement=f"Redrawing every {every} steps hurts RoPE after the map more than {words}.",
                published=SEEN,
                quantity=f"what redrawing every {every} steps adds to the loss, after minus {other}, bits per byte",
                region=(0, inf),
                margin=0.01,
                sample=_hurt_more(after, f"favor+-{variant}", every),
                family="seen",
                resolution=BITS_PER_BYTE,
            )
            for other, variant, words, every in (
                ("before", "rope-before", "RoPE before it", 1000),
                ("none", "none", "no positions", 100),
            )
        ),
        Claim(
            key="new-features-after",
            statement="A finished model with RoPE after the map gets worse when its features are drawn anew.",
            published=DERIVED,
            quantity=f"test loss with new features (mean of {NEW_DRAWS} draws) minus with its own, bits per byte",
            region=(0, inf),
            margin=0.01,
            sample=_lost_when_redrawn(after),
            family="new features",
            resolution=BITS_PER_BYTE,
        ),
        Claim(
            key="new-features-after-more-than-before",
            statement="New features cost a finished model with RoPE after the map more than one with RoPE before it.",
            published=DERIVED,
            quantity="loss with new features minus with its own, after minus before, bits per byte",
            region=(0, inf),
            margin=0.01,
            sample=_lost_when_redrawn(after, before),
            family="new features",
            resolution=BITS_PER_BYTE,
        ),
        Claim(
            key="new-features-paired-less-than-plain",
            statement="New features cost a finished model with the plain map more than one with the paired map.",
            published="none found; our own hypothesis",
            quantity="loss with new features minus with its own, paired minus plain, bits per byte",
            region=(-inf, 0),
            margin=0.01,
            sample=_lost_when_redrawn(paired_map, after),
            family="new features",
            resolution=BITS_PER_BYTE,
        ),
    )


CLAIMS = _claims()

_FINAL = FigureEntry(
    "final-loss",
    "Loss after training, by how often features are drawn anew",
    "Test bits per byte after the last step, with the features of the last draw.",
)
_CURVES = FigureEntry(
    "validation",
    "Validation loss with and without redraws",
    "Bits per byte of the validation split, from a quarter of the run on. A variant that is redrawn is evaluated with "
    "the "
    "features it has at that step, which it may have had for few steps.",
)
_REDRAWN = (
    f"Finished models, evaluated on {WINDOWS} windows of the test split (fewer if it is shorter) "
    f"with their own features and with {NEW_DRAWS} new draws, without further training: bits per byte, mean over seeds "
    "with 95 % interval."
)
