"""What people look at: counters, time series, alerts and recent sessions.

Everything is counted from :class:`RequestRecord`, one per finished request.
"""

from suffixspec_service.monitor.monitor import Monitor, MonitorConfig
from suffixspec_service.monitor.records import Piece, RequestRecord

__all__ = ["Monitor", "MonitorConfig", "Piece", "RequestRecord"]
