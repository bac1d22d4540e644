"""Log lines as kopf writes the controller's, for processes that do without kopf."""

import json
import logging

_TEXT = "[%(asctime)s] %(name)-20.20s [%(levelname)-8.8s] %(message)s"
_TIME = "%Y-%m-%dT%H:%M:%S"
_SEVERITIES = {"WARNING": "warn", "CRITICAL": "fatal"}


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname
        line = {
            "message": record.getMessage(),
            "timestamp": self.formatTime(record, _TIME),
            "severity": _SEVERITIES.get(level, level.lower()),
        }
        if record.exc_info:
            line["exc_info"] = self.formatException(record.exc_info)
        return json.dumps(line)


def configure(*, form: str, level: str) -> None:
    """Log to standard error. ``form`` is text or json, ``level`` debug, info or warning."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if form == "json" else logging.Formatter(_TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler])
