"""Data: sources, shifts, partitions, splits and silos."""

from ..core import Data, Silo
from .augmentation import augmented
from .build import load, read
from .new_inputs import labeled_inputs, labels_of, noted_inputs, read_inputs, truth_of
from .ood_streams import with_streams
from .preprocessing import Inputs, Preparation
from .raw_samples import Pool
from .settings import DataSettings, Normalize, OodSettings, Partition, Shift, Split
from .silo_collection import Silos, population
from .sources.array_files import digits, npz
from .sources.image_folders import recolored, resized
from .splits import hashes, splits_record
from .subgroups import Subgrouping
from .survey import survey
from .user_data import from_arrays, from_datasets, rotated
from .user_files import from_files, from_frames

__all__ = [
    "Data",
    "DataSettings",
    "Inputs",
    "Normalize",
    "OodSettings",
    "Partition",
    "Pool",
    "Preparation",
    "Shift",
    "Silo",
    "Silos",
    "Split",
    "Subgrouping",
    "augmented",
    "digits",
    "from_arrays",
    "from_datasets",
    "from_files",
    "from_frames",
    "hashes",
    "labeled_inputs",
    "labels_of",
    "load",
    "noted_inputs",
    "npz",
    "population",
    "read",
    "read_inputs",
    "recolored",
    "resized",
    "rotated",
    "splits_record",
    "survey",
    "truth_of",
    "with_streams",
]
