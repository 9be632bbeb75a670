from experiments.data.registry import DATA_SETS
from experiments.run.registry import LAUNCHERS
from experiments.studies.registry import STUDIES
from linear_rope.features.registry import FEATURE_MAPS
from my_rope.data import COUNTING
from my_rope.gain.study import STUDY
from my_rope.launchers import OneByOne
from my_rope.maps import SquarePlus

FEATURE_MAPS["squareplus"] = SquarePlus
DATA_SETS.add("counting", COUNTING, module=__name__)
STUDIES.add("gain", STUDY, module=__name__)
LAUNCHERS.add("one-by-one", OneByOne, module=__name__)
