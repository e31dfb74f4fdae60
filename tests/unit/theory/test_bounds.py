"""Bounds against the tables worked out from the formulas, to the digits they are printed with."""

from dataclasses import replace
from typing import Any, get_args

import pytest

from magneto.theory.bounds import (
    Form,
    Scales,
    bound,
    bounded_placements,
    derived_scales,
    encoder_decoder_bound,
    find_family,
    growth_exponent,
)
from magneto.theory.placement import PLACEMENTS, VARIANTS, Depth

# Layers: gamma; paper, first_order and telescoped at v = w = 1; the same at gamma (docs/theory.md).
ONE_STACK = {
    6: (1.5764, (8.0398, 3.8333, 4.3603), (3.2354, 1.5426, 2.1060)),
    24: (1.9675, (10.8759, 3.9583, 6.9584), (2.8094, 1.0225, 2.1205)),
    1000: (2.7570, (18.3557, 3.9990, 14.3577), (2.4149, 0.5261, 2.0999)),
}
# N = M: gamma_d, gamma_e; decoder, encoder, passed_on, total at v = w = 1; the same at gamma.
TWO_STACKS = {
    6: (1.7001, 1.5473, (8.8791, 8.0398, 1.4799, 20.7767), (3.0720, 3.3582, 1.4799, 8.0415)),
    18: (1.9972, 2.1829, (11.1138, 10.2936, 1.8523, 30.1806), (2.7861, 2.1603, 1.8523, 6.7877)),
    100: (2.3883, 3.1739, (14.5587, 13.7461, 2.4264, 47.9127), (2.5525, 1.3646, 2.4264, 5.8635)),
}
ALIKE, FORMS = ("pre", "sub"), get_args(Form)


def rounded(value: float) -> object:
    return pytest.approx(value, abs=5.0001e-5)


def gamma(layers: int) -> Scales:
    return derived_scales("sub", Depth("encoder", layers))


def ones(sublayers: int) -> Scales:
    return Scales.of(sublayers, 1, 1)


@pytest.mark.parametrize("placement", ALIKE)
@pytest.mark.parametrize("layers", ONE_STACK)
def test_one_stack(layers: int, placement: str) -> None:
    gain, at_one, at_gain = ONE_STACK[layers]
    scaled, one = gamma(layers), ones(2 * layers)
    assert scaled == derived_scales("sub", Depth("decoder", layers))
    assert all(scale == rounded(gain) for scale in scaled.v + scaled.w)
    for form, value, value_at_gain in zip(FORMS, at_one, at_gain, strict=True):
        assert bound(placement, one, form=form) == rounded(value)
        if (placement, form) != ("pre", "telescoped"):
            assert bound(placement, scaled, form=form) == rounded(value_at_gain)
    assert bound("post", one) == pytest.approx(4 * layers)


@pytest.mark.parametrize("placement", ALIKE)
@pytest.mark.parametrize("layers", TWO_STACKS)
def test_two_stacks(layers: int, placement: str) -> None:
    gain_decoder, gain_encoder, at_one, at_gain = TWO_STACKS[layers]
    encoder = derived_scales("sub", Depth("encoder", layers, layers))
    decoder = derived_scales("sub", Depth("decoder", layers, layers))
    assert all(scale == rounded(gain_decoder) for scale in decoder.v)
    assert all(scale == rounded(gain_encoder) for scale in encoder.v)
    for scales, values in (
        ((ones(2 * layers), ones(3 * layers)), at_one),
        ((encoder, decoder), at_gain),
    ):
        for cross in ("second", "paper"):
            made = encoder_decoder_bound(placement, *scales, cross=cross)
            terms = (made.decoder, made.encoder, made.passed_on, made.total)
            assert terms == tuple(rounded(value) for value in values)


def test_two_stacks_first_order() -> None:
    stacks = [derived_scales("sub", Depth(stack, 18, 18)) for stack in ("encoder", "decoder")]
    for cross, passed_on in (("paper", 0.6939), ("second", 0.6568)):
        for placement in ALIKE:
            made = encoder_decoder_bound(placement, *stacks, cross=cross, form="first_order")
            assert made.passed_on == rounded(passed_on)
    made = encoder_decoder_bound("sub", *stacks, cross="paper", form="first_order")
    assert made.total == rounded(1.5679)


@pytest.mark.parametrize(("layers", "total"), [(6, 5.597), (18, 4.680), (100, 4.072)])
def test_two_stacks_as_implemented(layers: int, total: float) -> None:
    encoder = derived_scales("sub", Depth("encoder", layers, layers))
    decoder = derived_scales("sub", Depth("decoder", layers, layers), cross_gain=1)
    assert decoder.v[:3] == (decoder.v[0], 1, decoder.v[0])
    made = encoder_decoder_bound("sub", encoder, decoder)
    assert made.total == pytest.approx(total, abs=5.0001e-4)


def test_one_exploding_sublayer() -> None:
    """The values of docs/theory.md; the printed 2007.9 has a sublayer that multiplies itself."""
    for w6, form, *values in (
        (1, "paper", 9.469, 9.469), (10, "paper", 27.78, 9.273), (100, "paper", 2007.9, 9.271),
        (100, "first_order", 3.000, 3.815), (100, "telescoped", 3.903, 5.489),
    ):  # fmt: skip
        scales = Scales.of(24, 1, [1.0] * 5 + [w6] + [1.0] * 18)
        found = [bound(name, scales, form=form) for name in ALIKE]
        assert found == pytest.approx(values, abs=5e-4, rel=2e-4)


def naive_bound(v: list[float], w: list[float], name: str, form: str) -> float:
    """Compute the double sums and products as printed; the index range is the form's."""
    number = len(v)
    s = [v[n] ** 2 * (w[n] ** 2 if name == "pre" else 1) for n in range(number)]
    total = 0.0
    for n in range(number):
        step = v[n] ** 2 + w[n] ** 2 if name == "pre" else 1 + v[n] ** 2 / w[n] ** 2
        if form == "telescoped":
            q = 1 / (1 + sum(s))
            for k in range(n + 1, number):
                q *= 1 + s[k] / (1 + sum(s[:k]))
        else:
            first = 1 if form == "paper" else n + 1
            q = (1 + sum(s[k] / sum(s[:k]) for k in range(first, number))) / sum(s)
        total += step * q
    return total


@pytest.mark.parametrize("name", ALIKE)
@pytest.mark.parametrize("form", FORMS)
def test_unequal_scales_against_the_double_sum(name: str, form: Any) -> None:
    v = [0.3 + 0.2 * (n % 7) for n in range(20)]
    w = [1.9 - 0.15 * (n % 11) for n in range(20)]
    made = bound(name, Scales.of(20, v, w), form=form)
    assert made == pytest.approx(naive_bound(v, w, name, form))


@pytest.mark.parametrize("layers", [1, 18, 1000])
def test_deepnorm_is_1_at_every_depth(layers: int) -> None:
    for stack in ("encoder", "decoder"):
        alone = derived_scales("deepnorm", Depth(stack, layers))
        assert bound("deepnorm", alone) == pytest.approx(1)
    decoder = derived_scales("deepnorm", Depth("decoder", layers, layers))
    encoder = derived_scales("deepnorm", Depth("encoder", layers, layers))
    made = encoder_decoder_bound("deepnorm", encoder, decoder)
    assert made.decoder == pytest.approx(1)
    # 1 up to the two digits of 0.81 and 0.87: 2 (0.87 / 0.81)^2 instead of 27^(1/4).
    assert made.passed_on * made.encoder == pytest.approx(2 * (0.87 / 0.81) ** 2 / 27**0.25)


def test_growth() -> None:
    depths = [12, 24, 48, 96]
    exponents = {
        name: growth_exponent(
            depths, [bound(name, derived_scales(name, Depth("encoder", n))) for n in depths]
        )
        for name in bounded_placements()
    }
    assert exponents["post"] == pytest.approx(1)
    assert exponents["deepnorm"] == pytest.approx(0, abs=1e-9)
    assert exponents["sub"] < 0 < exponents["pre"] < 0.25


def test_which_placements_have_one() -> None:
    assert bounded_placements() == ["post", "pre", "deepnorm", "sub", "pre-qk"]
    assert find_family("pre-qk") is find_family("pre")
    assert find_family("post") is find_family("deepnorm")
    assert find_family(VARIANTS["sub-cross-inside"]) is find_family("sub")
    assert set(find_family("sub").backward) == set(FORMS)
    for name in ("normformer", "peri", "olmo2", "keel", "hybrid", "gated"):
        title = PLACEMENTS[name].title
        with pytest.raises(ValueError, match=rf"{title} .*post, pre, deepnorm, sub, pre-qk"):
            find_family(name)


def test_a_row_of_ones_own_has_the_bound_of_its_layout() -> None:
    mine = replace(PLACEMENTS["sub"], name="mine", gain=lambda depth: 3.0)
    scales = derived_scales(mine, Depth("encoder", 6))
    assert bound(mine, scales) == pytest.approx(2 / 9 * (1 + sum(1 / k for k in range(1, 12))))
    for change in (
        {"final": "none"}, {"value_norm": "head"}, {"head_scale": "after_out"},
        {"gated": ("self_attention",)}, {"first": PLACEMENTS["pre"]},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="no bound is derived"):
            bound(replace(mine, **change), scales)


def test_wrong_use_is_named() -> None:
    with pytest.raises(ValueError, match=r"unknown form 'telescoped'.*Known: paper"):
        bound("post", ones(4), form="telescoped")
    with pytest.raises(ValueError, match="alpha must be 1"):
        bound("sub", Scales.of(4, 1, 1, alpha=2.0))
    for bad in (float("nan"), float("inf"), -1.0, 0.0, 1e30):
        for name, given in (("v", (bad, 1)), ("w", (1, bad)), ("alpha", (1, 1, bad))):
            with pytest.raises(ValueError, match=rf"^{name} .*positive"):
                Scales.of(2, *given)
    with pytest.raises(ValueError, match="one value per sublayer"):
        Scales((), ())
