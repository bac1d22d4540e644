"""The demo's programs and the real Valkeys of the store tests, importable by name."""

import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(CHECKOUT / "deploy/demo"), str(CHECKOUT / "tests/unit/store")]
