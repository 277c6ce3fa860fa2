"""One small file a method, one table of names."""

from calopd.methods import cal_opd, opd
from calopd.methods.base import Method, opd_advantage

METHODS: dict[str, Method] = {m.METHOD.name: m.METHOD for m in (opd, cal_opd)}

__all__ = ["METHODS", "Method", "opd_advantage"]
