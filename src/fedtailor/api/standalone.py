"""Predict with this model:  python predict.py NEW > predictions.csv

It needs PyTorch, not FedTailor. One line per sample: its number, the prediction, and the probability of each label.
"""

import csv
import json
import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
DESCRIPTION = json.loads((HERE / "description.json").read_text(encoding="utf-8"))


def read_table(path: str) -> tuple[list[str], torch.Tensor]:
    """Read a CSV file with the columns of training: a number, a category's position, NaN if missing, -1 if unknown."""
    missing = {"", "#N/A", "#N/A N/A", "#NA", "-NaN", "-nan", "<NA>", "N/A", "NA"}
    missing |= {"NULL", "NaN", "None", "n/a", "nan", "null"}

    def value(cell: str, column: dict) -> float:
        if cell.strip() in missing:
            return float("nan")
        if column["kind"] == "number":
            return float(cell)
        words = [cell.strip(), cell.strip().capitalize()]  # true and TRUE are True
        if words[0].replace(".", "", 1).lstrip("-").isdecimal():
            words.append(str(int(float(cell)) if float(cell).is_integer() else float(cell)))  # 03 and 3.0 are 3
        return next((float(column["values"].index(word)) for word in words if word in column["values"]), -1.0)

    with open(path, newline="", encoding="utf-8-sig") as file:
        rows = [[value(row[c["name"]], c) for c in DESCRIPTION["columns"]] for row in csv.DictReader(file)]
    return [], torch.tensor(rows, dtype=torch.float64)


def read_text(path: str) -> tuple[list[str], torch.Tensor]:
    """Read the texts of a CSV file as token ids: 0 is padding, 1 an unknown token."""
    columns: list[str] = []  # of the texts; empty: all but the first, which is a label, unless it is the only one
    marks = str.maketrans({mark: f" {mark} " for mark in "'.,()!?"} | dict.fromkeys(';:"', " "))
    ids, length = {token: i for i, token in enumerate(DESCRIPTION["tokens"], start=2)}, DESCRIPTION["shape"][0]
    with open(path, newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file)
        header = next(lines) if columns else []
        where = [header.index(column) for column in columns]
        texts = [" ".join([row[i] for i in where] or row[1:] or row) for row in lines]
    words = [text.lower().replace("<br />", " ").translate(marks).split()[:length] for text in texts]
    return [], torch.tensor([[ids.get(word, 1) for word in row] + [0] * (length - len(row)) for row in words])


def read_images(path: str) -> tuple[list[str], torch.Tensor]:
    """Read an image file, or all images in a folder, as pixels of the size of training."""
    import numpy
    from PIL import Image

    channels, height, width = DESCRIPTION["shape"]
    endings = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
    below = [file for file in Path(path).rglob("[!.]*") if file.suffix.lower() in endings]
    files, images = sorted(below) if Path(path).is_dir() else [Path(path)], []
    for file in files:
        image: Image.Image = Image.open(file)
        if image.mode.startswith(("I", "F")):
            sys.exit(f"{file} has more than 8 bits a pixel: convert it first.")
        image = image.convert("L" if channels == 1 else "RGB")
        if image.size != (width, height):
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        images.append(torch.tensor(numpy.asarray(image)).reshape(height, width, channels).permute(2, 0, 1))
    return [str(file) for file in files], torch.stack(images)


def read_arrays(path: str) -> tuple[list[str], torch.Tensor]:
    """Read the array x of an .npz file."""
    import numpy

    x = torch.tensor(numpy.load(path)["x"])
    return [], x if x.dtype == torch.uint8 else x.float() if x.is_floating_point() else x.long()


def main() -> None:
    program = torch.export.load(HERE / "model.pt2").module()
    files, x = read_table(sys.argv[1])
    with torch.inference_mode():
        answers = torch.cat([program(piece) for piece in x.split(256)]).tolist()
    kind, labels = DESCRIPTION["kind"], DESCRIPTION["labels"] or range(DESCRIPTION["classes"])
    header = ["prediction", *labels]
    if kind == "regression":
        header = [f"prediction {k}" for k in labels] if len(labels) > 1 else ["prediction"]
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["row", *(["file"] if files else []), *header])
    for i, row in enumerate(answers):
        said = [] if kind == "regression" else [labels[row.index(max(row))]]
        if kind == "multilabel":
            said = [" ".join(str(int(p > 0.5)) for p in row)]
        out.writerow([i + 1, *([files[i]] if files else []), *said, *row])


if __name__ == "__main__":
    main()
