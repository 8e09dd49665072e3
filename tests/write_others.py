"""Write photographs as datasets of LitData and MosaicML: write_others.py FOLDER OUTPUT."""

import sys
from pathlib import Path
from typing import Any

import litdata
from streaming import MDSWriter


def sample(file: tuple[str, int]) -> dict[str, Any]:
    return {"image": Path(file[0]).read_bytes(), "class": file[1]}


def main(photographs: Path, output: Path) -> None:
    classes = sorted(path.name for path in (photographs / "train").iterdir())
    for split in ("train", "val"):
        paths = sorted((photographs / split).glob("*/*.jpg"))
        files = [(str(path), classes.index(path.parent.name)) for path in paths]
        target = str(output / "litdata" / split)
        litdata.optimize(sample, files, target, chunk_size=8, num_workers=1, verbose=False)
        columns = {"image": "bytes", "class": "int"}
        with MDSWriter(out=str(output / "mds" / split), columns=columns) as writer:
            for file in files:
                writer.write(sample(file))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
