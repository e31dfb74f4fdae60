"""easy-VQA in the files of VQA v2, which are read: each answer stands for ten who agree.

    python examples/easy_vqa_to_vqa.py easy_vqa/ easy_vqa_as_vqa/
    magneto train visual-question-answering/tiny --data easy_vqa_as_vqa/ \
        --data.validation_split val2014 --data.answers easy_vqa/answers.txt --model.image_size 64

easy_vqa/ is the folder `data` of the package easy-vqa. Its test split is validated on.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path


def main(source: Path, target: Path) -> None:
    """Write questions, annotations and images of both splits."""
    for split, name in (("train", "train2014"), ("test", "val2014")):
        (target / name).mkdir(parents=True)
        questions, annotations = [], []
        rows = json.loads((source / split / "questions.json").read_text())
        for number, (text, answer, image) in enumerate(rows):
            kind = "yes/no" if answer in ("yes", "no") else "other"
            questions.append({"question_id": number, "image_id": image, "question": text})
            annotations.append({"question_id": number, "question_type": "", "answer_type": kind,
                                "multiple_choice_answer": answer,
                                "answers": [{"answer": answer}] * 10})  # fmt: skip
            copy = target / name / f"COCO_{name}_{image:012d}.jpg"  # read as what it is, a PNG
            shutil.copyfile(source / split / "images" / f"{image}.png", copy)
        asked, noted = {"questions": questions}, {"annotations": annotations}
        (target / f"v2_OpenEnded_mscoco_{name}_questions.json").write_text(json.dumps(asked))
        (target / f"v2_mscoco_{name}_annotations.json").write_text(json.dumps(noted))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
