"""Text: language models, masked language models, and what is fine-tuned from them."""
