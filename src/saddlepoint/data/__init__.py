"""Labeled images: bundled with the package, downloaded, or supplied by the user.

>>> from saddlepoint.data import load_data
>>> load_data("digits")
Data('digits', x=[500, 1, 8, 8], 10 classes)
"""

from saddlepoint.data.files import data_roots
from saddlepoint.data.load import SOURCES, load_data
from saddlepoint.data.pull import PULLABLE, pull
from saddlepoint.data.record import Data, DataError, Split

__all__ = ["PULLABLE", "SOURCES", "Data", "DataError", "Split", "data_roots", "load_data", "pull"]
