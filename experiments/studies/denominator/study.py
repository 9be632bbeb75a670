"""Is the unrotated denominator of RoFormer's eq. 19 needed for stability, and what do its weights look like?

python -m experiments run denominator
"""

from pathlib import Path

from experiments.study import read_study

STUDY = read_study(Path(__file__).parent)
