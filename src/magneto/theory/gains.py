"""Constants derived from depth: Sub-LN's gain gamma, DeepNorm's alpha and beta, Keel's alpha.

In the paper's symbols N is the number of encoder layers and M of decoder layers; log is natural.
"""

from __future__ import annotations

from math import log, sqrt

from magneto.theory.depth import Depth


def one(depth: Depth) -> float:
    """Return 1: the gain, and the weight of the skip, of a placement that derives neither."""
    return 1.0


def sub_gain(depth: Depth) -> float:
    """Return gamma of Sub-LN (paper, section 3.2 and figure 2, top right).

    sqrt(log 2N) alone; in an encoder-decoder sqrt(log(3M) log(2N) / 3) for the encoder and
    sqrt(log 3M) for the decoder. It may be below 1 (N = 1), and is not clamped.
    """
    if depth.alone:
        return sqrt(log(2 * depth.layers))
    if depth.stack == "encoder":
        return sqrt(log(3 * depth.other_layers) * log(2 * depth.layers) / 3)
    return sqrt(log(3 * depth.layers))


def deepnorm_alpha(depth: Depth) -> float:
    """Return alpha of DeepNorm, the weight of the skip (DeepNet, arXiv 2203.00555, figure 2)."""
    if depth.alone:
        return (2 * depth.layers) ** 0.25
    if depth.stack == "encoder":
        return 0.81 * (depth.layers**4 * depth.other_layers) ** (1 / 16)
    return (3 * depth.layers) ** 0.25


def deepnorm_beta(depth: Depth) -> float:
    """Return beta of DeepNorm, the gain of v, out, fc1, fc2 (arXiv 2203.00555, figure 2)."""
    if depth.alone:
        return (8 * depth.layers) ** -0.25
    if depth.stack == "encoder":
        return 0.87 * (depth.layers**4 * depth.other_layers) ** (-1 / 16)
    return (12 * depth.layers) ** -0.25


def keel_alpha(depth: Depth) -> float:
    """Return alpha of Keel, the weight of the skip: the number of sublayers (arXiv 2601.19895, 3).

    The paper has decoders alone, with two sublayers per layer. Three in a decoder that attends to
    an encoder is this library's reading.
    """
    return float(depth.sublayers)
