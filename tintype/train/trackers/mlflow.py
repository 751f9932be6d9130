"""MLflow. MLFLOW_TRACKING_URI names the server or the database; without it MLflow uses its default."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tintype.seams import Tracker, TrackerStatus, VerdictRow
from tintype.train.trackers.tracked import Tracked

_ID = "tintype_id"
"""The tag by which a resumed run finds its MLflow run."""
_MOST_PARAMS = 100
"""Maximum number of parameters in one request."""
_MOST_LETTERS = 500
"""Maximum length of a parameter value that every MLflow store accepts. The whole plan is stored as an artifact."""
_STATUS: Mapping[TrackerStatus, str] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MLflow(Tracker):
    def __init__(self, about: Tracked) -> None:
        import mlflow
        from mlflow.entities import Metric, Param

        self._client, self._metric = mlflow.MlflowClient(), Metric
        known = self._client.get_experiment_by_name(about.project)
        experiment = known.experiment_id if known else self._client.create_experiment(about.project)
        found = self._client.search_runs([experiment], f"tags.{_ID} = '{about.id}'")
        if found:
            self._run: str = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return
        tags = {_ID: about.id, **({"group": about.group} if about.group else {})}
        self._run = self._client.create_run(experiment, tags=tags, run_name=about.name).info.run_id
        self._client.log_text(self._run, about.text, "plan.yaml")
        params = [Param(key, _words(value)[:_MOST_LETTERS]) for key, value in about.settings.items()]
        for first in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(self._run, params=params[first : first + _MOST_PARAMS])

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        now_ms = int(time.time() * 1000)
        metrics = [self._metric(name, value, now_ms, step) for name, value in numbers.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def log_images(self, step: int, files: Mapping[str, Path]) -> None:
        for name, file in files.items():
            self._client.log_artifact(self._run, str(file), f"images/{name}/step-{step}")

    def log_verdicts(self, rows: Sequence[VerdictRow]) -> None:
        keys = list(rows[0])
        self._client.log_dict(
            self._run, {"columns": keys, "data": [list(row.values()) for row in rows]}, "verdicts.json"
        )

    def close(self, status: TrackerStatus) -> None:
        self._client.set_terminated(self._run, status=_STATUS[status])


def _words(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
