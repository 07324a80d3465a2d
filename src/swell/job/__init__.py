"""The one object a user holds: it knows all the parts and lets them know nothing of one another."""

from swell.job.job import Job

__all__ = ["Job"]
