"""Which published run is the baseline? The folder given, or of the devices in it the one that can be compared."""

from pathlib import Path

from accuracy.core.errors import ConfigError
from accuracy.gate.fingerprint import differences, hard
from accuracy.results.run_table import RunTable, read_baseline


def baseline(run: RunTable, folder: Path) -> RunTable:
    """reports/NAME/DEVICE is itself; of reports or reports/NAME, the device that differs least. Raises ConfigError."""
    if not folder.is_dir():
        raise ConfigError(f"--baseline {folder}: no such folder; give reports/NAME or reports/NAME/DEVICE")
    if (folder / run.experiment / "").is_dir() and not (folder / "run.json").exists():
        folder = folder / run.experiment
    inside = sorted(each.parent for each in folder.glob("*/run.json"))
    if (folder / "run.json").exists() or not inside:
        return read_baseline(folder)
    devices = [read_baseline(each) for each in inside]
    return min(devices, key=lambda each: len(differences(hard(each.about), hard(run.about))))
