"""Reports of a replay: figures, tables, JSON, Parquet, an HTML page."""

from suffixspec_traces.report.metrics import ReportOptions, build_report
from suffixspec_traces.report.model import MethodReport, ReplayReport

__all__ = ["MethodReport", "ReplayReport", "ReportOptions", "build_report"]
