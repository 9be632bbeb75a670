"""The studies: a new one is a folder beside this file, and its name here, with - for _."""

from pathlib import Path

from experiments.extensions import Registry
from experiments.study import Study, read_study

NAMES = (
    "convergence recipe forgetting hybrids settings tokens positions mlm glue long-documents decay denominator "
    "features length mask pairing recall hybrids-recall copying state-tracking translation speed benchmark"
)

STUDIES: Registry[Study] = Registry(
    "study",
    "linear_rope.studies",
    {name: read_study(Path(__file__).parent / name.replace("-", "_")) for name in NAMES.split()},
)
