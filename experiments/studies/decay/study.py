"""How does attention fall off with distance: in theory, over random content and features, and in trained models?

python -m experiments run decay
"""

from pathlib import Path

from experiments.study import read_study

STUDY = read_study(Path(__file__).parent)
