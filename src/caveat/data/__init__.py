"""Data: sources, shifts, partitions, splits, and the silos they make."""

from ..core import Data, Silo
from .build import load, read
from .inputs import labelled_inputs, labels_of, noted_inputs, read_inputs
from .pools import Pool
from .preparation import Inputs, Preparation
from .settings import DataSettings, Labels, Normalise, Shift, Split, Streams
from .silos import Silos, population
from .sources.arrays import digits, npz
from .sources.images import recoloured, resized
from .splits import hashes, splits_record
from .streams import with_streams
from .survey import survey
from .transforms import augmented
from .user_data import from_arrays, from_datasets, rotated

__all__ = [
    "Data",
    "DataSettings",
    "Inputs",
    "Labels",
    "Normalise",
    "Pool",
    "Preparation",
    "Shift",
    "Silo",
    "Silos",
    "Split",
    "Streams",
    "augmented",
    "digits",
    "from_arrays",
    "from_datasets",
    "hashes",
    "labelled_inputs",
    "labels_of",
    "load",
    "noted_inputs",
    "npz",
    "population",
    "read",
    "read_inputs",
    "recoloured",
    "resized",
    "rotated",
    "splits_record",
    "survey",
    "with_streams",
]
