"""Pictures of a study of made-up comparisons."""

from experiments.show.draw import draw
from experiments.show.keys import shown_of
from experiments.show.style import style


def picture_of(rows, stem):
    shown = shown_of(rows.study)
    with style():
        return draw(next(figure for figure in shown.figures if figure.stem == stem), shown.quantities, rows)
