"""Labeled images: what is in the package, what was downloaded, and what the user brings.

>>> from saddlepoint.data import load_data
>>> load_data("digits")
Data('digits', x=[500, 1, 8, 8], 10 classes)
"""

from saddlepoint.data.files import data_roots
from saddlepoint.data.load import SOURCES, load_data
from saddlepoint.data.pull import PULLABLE, pull
from saddlepoint.data.record import Data, DataError, Split

__all__ = ["PULLABLE", "SOURCES", "Data", "DataError", "Split", "data_roots", "load_data", "pull"]
