"""Replay and tuning as jobs: each in a process of its own, so that serving is not disturbed."""

from suffixspec_service.jobs.jobs import Job, Jobs, JobsConfig
from suffixspec_service.jobs.spec import ReplaySpec, TuningSpec

__all__ = ["Job", "Jobs", "JobsConfig", "ReplaySpec", "TuningSpec"]
