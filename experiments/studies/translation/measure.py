"""The translations of the test split, their BLEU, and what the claims of the study compare."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from torch import nn

from experiments.config import Config
from experiments.judge.runs import Runs
from experiments.judge.samples import ReadSample, Undefined, by_seed
from experiments.records.record import run_directory
from experiments.records.schema import KNOWS_NOTHING, Comparison
from experiments.show.rows import Rows
from experiments.studies.answers import spread
from experiments.studies.tables import RUN, Table, measure_models
from experiments.train.checkpoint import as_tensors, load_average
from experiments.train.objectives import Objective
from experiments.train.translation import AS_IT_IS, Translation, corpus_bleu, translate
from experiments.train.translation import BEAMS as BEAMS
from experiments.train.translation import LENGTH_PENALTY as LENGTH_PENALTY
from linear_rope.model import EncoderDecoder

AVERAGED = 5
"""checkpoints, in every preset (Vaswani et al. 2017, section 6.1)"""
KEPT = 20
"""translations of each run in translations.csv"""
SHOWN = 8
"""of these in the report"""

SCORES = Table(
    "bleu",
    RUN,
    {
        "bleu": float,
        "pairs": int,
        "checkpoints": int,
        "weights": str,
        "signature": str,
    },
)
TRANSLATIONS = Table("translations", RUN | {"number": int}, {"source": str, "reference": str, "translation": str})


def measure(root: Path, comparison: Comparison, objective: Objective) -> list[str]:
    """Write bleu.csv and translations.csv; returns sentences about what could not be measured.

    A run whose weights were measured already is not translated again.
    """
    if not isinstance(objective, Translation):
        return [f"--data {objective.corpus.name} is no translation: no BLEU was measured; give --data multi30k"]
    config = Config.of(comparison.config)
    chosen = objective.chosen("test", config.test_windows)
    pairs = objective.examples.test.iloc[chosen]
    sources, references = pairs["source"].tolist(), pairs["target"].tolist()
    before, texts_before = SCORES.by_run(root), TRANSLATIONS.by_run(root)

    def translated(name: str, seed: int, model: EncoderDecoder) -> Iterator[tuple[pd.DataFrame, ...] | str]:
        try:
            count = load_average(run_directory(root, name, seed), model, config)
        except (ValueError, OSError) as error:
            yield f"the translation leaves out {name} seed {seed}: {error}"
            return
        if count < config.kept_checkpoints:
            yield f"{name} seed {seed} translates with the average of {count} checkpoints: no more are whole"
        weights, run = digest_of(model), (name, seed)
        if run in before and run in texts_before and before[run].iloc[0]["weights"] == weights:
            return
        said = translate(model, objective.tokenizer, config.context, sources)
        bleu, signature = corpus_bleu(said, references, objective.examples.language)
        score = {"bleu": bleu, "pairs": len(said), "checkpoints": count, "weights": weights, "signature": signature}
        texts = {"number": chosen, "source": sources, "reference": references, "translation": said}
        # Spread over all lengths: those at the beginning are the shortest.
        yield pd.DataFrame([score]), pd.DataFrame(texts).iloc[spread(np.arange(len(said)), KEPT)]

    return measure_models((SCORES, TRANSLATIONS), root, comparison, objective, "the translation", translated)


def samples(rows: Rows) -> pd.DataFrame:
    """Rows of strings: of each text itself, its reference, and the translation of each variant with the first seed."""
    found = TRANSLATIONS.read(rows.root)
    mine = found[found["seed"] == found["seed"].min()]
    told = []
    for count, place in enumerate(spread(mine["number"].unique(), SHOWN), 1):
        of_text = mine[mine["number"] == place].set_index("variant")
        first = of_text.iloc[0]
        told += [(f"text {count}", first["source"]), ("reference", first["reference"])]
        told += [(name, of_text.loc[name, "translation"]) for name in rows.variants if name in of_text.index]
    table = pd.DataFrame(told, columns=["by", "words"])
    table.attrs = {"seed": int(mine["seed"].iloc[0])}
    return table


def digest_of(model: nn.Module) -> str:
    """16 hexadecimal digits that tell weights apart."""
    digest = hashlib.sha256()
    for name, tensor in as_tensors(model.state_dict()).items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def bleu_difference(variant: str, other: str) -> ReadSample:
    """The BLEU of a variant minus that of another; not defined where neither is above that of the text itself."""

    def read(root: Path, comparison: Comparison, runs: Runs) -> Callable[[int], float | None]:
        scores, floor = (
            SCORES.read(root).set_index(["variant", "seed"])["bleu"].to_dict(),
            comparison.best_floor("bleu"),
        )

        def difference(seed: int) -> float | None:
            if not {(variant, seed), (other, seed)} <= scores.keys():
                return None
            mine, theirs = scores[variant, seed], scores[other, seed]
            if floor is not None and max(mine, theirs) <= floor.value:
                what = "the text itself" if floor.name in (AS_IT_IS, KNOWS_NOTHING) else floor.name
                raise Undefined(f"nothing was learnt ({mine:.1f} and {theirs:.1f} BLEU, {what} has {floor.value:.1f})")
            return float(mine - theirs)

        return difference

    return by_seed((variant, other), read)
