"""Labelled texts: classification and regression, with GLUE."""
