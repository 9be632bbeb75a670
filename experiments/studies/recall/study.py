"""What can each attention look up in its past, and what does its position encoding have to do with it?

python -m experiments run recall
"""

from pathlib import Path

from experiments.study import read_study

STUDY = read_study(Path(__file__).parent)
