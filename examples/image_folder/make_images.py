"""Make images/CLIENT/CLASS/*.png and new/*.png here: small pictures of circles and squares, each client in its own colours."""

import random
from pathlib import Path

from PIL import Image, ImageDraw

SIZE, EACH = 16, 24
COLOURS = {"amber": ("#ffbf00", "#222222"), "cobalt": ("#0047ab", "#eeeeee"), "jade": ("#00a86b", "#552200")}


def picture(kind: str, ink: str, paper: str) -> Image.Image:
    image = Image.new("RGB", (SIZE, SIZE), paper)
    side, left, top = random.randint(7, 11), random.randint(0, 4), random.randint(0, 4)
    draw = ImageDraw.Draw(image)
    (draw.ellipse if kind == "circle" else draw.rectangle)((left, top, left + side, top + side), fill=ink)
    return image


random.seed(0)
for client, colours in COLOURS.items():
    for kind in ("circle", "square"):
        folder = Path("images") / client / kind
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(EACH):
            picture(kind, *colours).save(folder / f"{number:02d}.png")
Path("new").mkdir(exist_ok=True)
for kind in ("circle", "square"):
    picture(kind, *COLOURS["jade"]).save(Path("new") / f"a-{kind}.png")
