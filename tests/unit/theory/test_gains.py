"""Gains against the table of constants (paper, section 3.2; DeepNet, figure 2), to 4 decimals."""

import math

import pytest

from magneto.theory.placement import (
    Depth,
    Stack,
    deepnorm_alpha,
    deepnorm_beta,
    keel_alpha,
    sub_gain,
)

# layers: gain alone, encoder's and decoder's gain at N = M; then DeepNorm's (alpha, beta) likewise.
CONSTANTS = {
    1: (0.8326, 0.5038, 1.0481, (1.1892, 0.5946), (0.8100, 0.8700), (1.3161, 0.5373)),
    6: (1.5764, 1.5473, 1.7001, (1.8612, 0.3799), (1.4179, 0.4970), (2.0598, 0.3433)),
    18: (1.8930, 2.1829, 1.9972, (2.4495, 0.2887), (1.9987, 0.3526), (2.7108, 0.2608)),
    24: (1.9675, 2.3492, 2.0680, (2.6321, 0.2686), (2.1868, 0.3223), (2.9130, 0.2427)),
    72: (2.2293, 2.9841, 2.3185, (3.4641, 0.2041), (3.0825, 0.2286), (3.8337, 0.1844)),
    1000: (2.7570, 4.5039, 2.8296, (6.6874, 0.1057), (7.0143, 0.1005), (7.4008, 0.0955)),
}


@pytest.mark.parametrize("layers", CONSTANTS)
def test_gains_of_the_papers(layers: int) -> None:
    one, *gains, alone, encoder, decoder = CONSTANTS[layers]
    kinds: tuple[Stack, ...] = ("encoder", "decoder")
    stacks = [Depth(stack, layers, other) for other in (0, layers) for stack in kinds]
    for depth, gain, (alpha, beta) in zip(
        stacks, (one, one, *gains), (alone, alone, encoder, decoder), strict=True
    ):
        assert sub_gain(depth) == pytest.approx(gain, abs=5e-5)
        assert deepnorm_alpha(depth) == pytest.approx(alpha, abs=5e-5)
        assert deepnorm_beta(depth) == pytest.approx(beta, abs=5e-5)


def test_encoders_gains_use_both_depths() -> None:
    """(log 3M log 2N / 3)^(1/2); 0.81 and 0.87 times (6^4 12)^(1/16) and its inverse."""
    depth = Depth("encoder", 6, 12)
    assert sub_gain(depth) == pytest.approx((math.log(36) * math.log(12) / 3) ** 0.5)
    assert sub_gain(Depth("decoder", 6, 12)) == sub_gain(Depth("decoder", 6, 6))
    assert deepnorm_alpha(depth) == pytest.approx(1.4807, abs=5e-5)
    assert deepnorm_beta(depth) == pytest.approx(0.4759, abs=5e-5)


def test_keel_alpha_is_the_number_of_sublayers() -> None:
    assert keel_alpha(Depth("decoder", 512)) == 1024
    assert keel_alpha(Depth("encoder", 6, 4)) == 12
    assert keel_alpha(Depth("decoder", 6, 4)) == 18


@pytest.mark.parametrize("arguments", [("encoder", 0), ("decoder", 3, -1), ("middle", 3)], ids=str)
def test_depth_refuses(arguments: tuple) -> None:
    with pytest.raises(ValueError):
        Depth(*arguments)
