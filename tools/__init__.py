"""What benchmarks, tests and scripts share, each thing once: real servers and programs, what an Azure account is
asked for, how a measurement is told, the builder of the documentation site. It knows neither `benchmarks` nor `tests`.
"""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
"""Of the repository."""
