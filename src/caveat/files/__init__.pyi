from .reading import read_comparison as read_comparison
