"""Conversion of easy-VQA to a table of images, questions and answers.

    python examples/easy_vqa_table.py easy_vqa/
    magneto train visual-question-answering/tiny --data easy_vqa/ --model.image_size 64

easy_vqa/ is the folder `data` of the package easy-vqa. Its test split is used for validation.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(folder: Path) -> None:
    """Write train.jsonl and validation.jsonl beside the images."""
    for split, name in (("train", "train"), ("test", "validation")):
        rows = json.loads((folder / split / "questions.json").read_text())
        lines = [json.dumps({"image": f"{split}/images/{image}.png", "question": question,
                             "answer": answer}) for question, answer, image in rows]  # fmt: skip
        (folder / f"{name}.jsonl").write_text("\n".join(lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
