"""Rows of made-up comparisons, and the pictures of their studies."""

from experiments.show.draw import draw
from experiments.show.keys import shown_of
from experiments.show.rows import read_rows
from experiments.show.style import style


def rows_of(root, study):
    return read_rows(root, study)


def picture_of(rows, stem):
    shown = shown_of(rows.study)
    with style():
        return draw(next(figure for figure in shown.figures if figure.stem == stem), shown.quantities, rows)
