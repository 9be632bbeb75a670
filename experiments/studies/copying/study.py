"""Can linear attention copy a sequence, and does its position encoding matter for that?

python -m experiments run copying
"""

from pathlib import Path

from experiments.study import read_study

STUDY = read_study(Path(__file__).parent)
