"""Real Valkey servers, as the store's tests start them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "store"))
