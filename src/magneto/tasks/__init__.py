"""One file per objective. The table says where each is; nothing is imported before it is used."""

TASKS = {
    "causal-lm": "magneto.tasks.causal_lm:CausalLanguageModeling",
    "masked-lm": "magneto.tasks.masked_lm:MaskedLanguageModeling",
    "image-classification": "magneto.tasks.image_classification:ImageClassification",
    "text-classification": "magneto.tasks.text_classification:TextClassification",
    "translation": "magneto.tasks.translation:Translation",
}
