"""The studies: a new one is a folder beside this file, and a line here."""

from experiments.extensions import Registry
from experiments.studies.convergence.study import STUDY as CONVERGENCE
from experiments.studies.copying.study import STUDY as COPYING
from experiments.studies.decay.study import STUDY as DECAY
from experiments.studies.denominator.study import STUDY as DENOMINATOR
from experiments.studies.features.study import STUDY as FEATURES
from experiments.studies.length.study import STUDY as LENGTH
from experiments.studies.mask.study import STUDY as MASK
from experiments.studies.pairing.study import STUDY as PAIRING
from experiments.studies.recall.study import STUDY as RECALL
from experiments.studies.speed.study import STUDY as SPEED
from experiments.study import Study

STUDIES: Registry[Study] = Registry(
    "study",
    "linear_rope.studies",
    {
        study.name: study
        for study in (CONVERGENCE, DECAY, DENOMINATOR, FEATURES, LENGTH, MASK, PAIRING, RECALL, COPYING, SPEED)
    },
)
