"""Tables of the papers, run again, and where each name is."""

from .comparison import grid as grid
from .table import Scale as Scale
from .table import absent as absent
from .table import listing as listing
from .table import missing as missing
from .table import named as named
from .table import seeds_of as seeds_of
from .table import tables as tables
