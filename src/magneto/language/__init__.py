"""Language modelling, masked language modelling and text classification."""
