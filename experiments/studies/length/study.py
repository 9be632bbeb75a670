"""What happens to a model on sequences longer than those it was trained on, and which position encoding bears it?

python -m experiments run length
"""

from pathlib import Path

from experiments.study import read_study

STUDY = read_study(Path(__file__).parent)
