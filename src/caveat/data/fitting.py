"""Settings that do not fit the inputs they are for, refused before anything is made of these."""

from __future__ import annotations
