"""Questions answered by a language model that was not trained on them."""
