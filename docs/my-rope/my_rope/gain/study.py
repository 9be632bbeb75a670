"""Does squareplus gain from RoPE after the map?"""

from pathlib import Path

from experiments.study import read_study

STUDY = read_study(Path(__file__).parent)
