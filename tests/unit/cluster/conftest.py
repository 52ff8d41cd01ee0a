"""Makes the local cluster's own package importable; it is not part of the distribution."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "hack" / "cluster"))
