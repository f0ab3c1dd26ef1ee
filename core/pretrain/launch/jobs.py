"""The jobs that ranks may have."""

from __future__ import annotations

import json

from pretrain.launch.forward_job import ForwardJob
from pretrain.launch.job import Job

AnyJob = Job | ForwardJob


def job_of(text: str) -> AnyJob:
    """Return the job of a line that its `to_json` made."""
    if "function" in json.loads(text):
        return ForwardJob.from_json(text)
    return Job.from_json(text)
