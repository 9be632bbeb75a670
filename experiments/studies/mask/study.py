"""Does redrawing the random features destroy what RoPE after the map has learnt?

python -m experiments run mask
"""

from pathlib import Path

from experiments.study import read_study

STUDY = read_study(Path(__file__).parent)
