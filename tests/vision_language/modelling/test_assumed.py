"""The largest batch of images, texts and pairs that a recipe allows."""

from magneto.recipe import load_recipe
from magneto.vision_language.modelling.assumed import black_examples


def test_a_batch_has_all_three_kinds_in_their_shares() -> None:
    changes = {"data.batch_shares": [1, 2, 1], "model.max_length": 20}
    task = load_recipe("vision-language-modelling/tiny", changes).build_task()
    task.example_batch(8)  # the tokenizer is assumed
    made = black_examples(task.data, 8)
    samples, data = made["masked"].samples, task.data
    assert len(made["images"]) == 2 + 2
    assert len(samples.image_starts) == 4 and len(samples.text_starts) == 2 + 4
    assert len(samples.token_ids) == 2 * data.paired_text_length + 4 * data.text_length
    assert made["masked"].hidden.sum().item() == 4 * data.patches.count
    assert len(made["words"]) > 0
