"""What loss terms share. The terms themselves are techniques, one file each."""

from tintype.losses.part import LossPart, Scheduled

__all__ = ["LossPart", "Scheduled"]
