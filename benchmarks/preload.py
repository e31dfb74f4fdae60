"""Import the packages of all contenders of `make bench` once, before their processes are forked."""

from contextlib import suppress
from importlib import import_module

PACKAGES = (
    "torch",
    "magneto.training.loop",
    "benchmarks.bench_contenders",
    "torch._dynamo",
    "transformers.modeling_utils",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.bert.modeling_bert",
    "transformers.models.marian.modeling_marian",
    "transformers.models.vit.modeling_vit",
    "transformers.models.speech_to_text.modeling_speech_to_text",
    "transformers.models.vilt.modeling_vilt",
    "x_transformers",
)

for package in PACKAGES:
    with suppress(ImportError):
        import_module(package)
