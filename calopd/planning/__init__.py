"""Planning of hardware: GPUs, memory of each role, and whether a configuration fits."""

from calopd.planning.fits import SPARE, RoleFit, role_fits

__all__ = ["SPARE", "RoleFit", "role_fits"]
