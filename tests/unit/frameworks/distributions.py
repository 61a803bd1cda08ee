"""Distributions that a test makes: a folder for sys.path, with metadata as an installer writes it."""

from pathlib import Path


def make_distribution(
    site: Path, name: str, version: str, files: dict[str, str], entry_points: str = "", *, distribution: str = ""
) -> Path:
    """Writes the files of a package and its metadata below `site`, and returns `site`."""
    for path, text in files.items():
        file = site / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    distribution = distribution or name
    info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in files))
    if entry_points:
        (info / "entry_points.txt").write_text(entry_points)
    return site
