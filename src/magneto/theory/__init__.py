"""Norm placements, their derived gains, and bounds on the model update.

This package does not import torch.
"""
