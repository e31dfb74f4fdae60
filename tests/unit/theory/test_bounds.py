"""Bounds against the tables worked out from the formulas, to the digits they are printed with."""

from dataclasses import replace
from math import log

import pytest

from magneto.theory.bounds import (
    FORMS,
    Scales,
    bound,
    bounded_placements,
    cross_attentions,
    derived_scales,
    effective_scale,
    encoder_decoder_bound,
    find_family,
    growth_exponent,
)
from magneto.theory.placement import PLACEMENTS, VARIANTS, Depth

# Layers: gamma^2, gamma; paper and first_order at v = w = 1; the same at gamma; Post-LN's order.
ONE_STACK = {
    6: (2.4849, 1.5764, 8.0398, 3.8333, 3.2354, 1.5426, 24),
    12: (3.1781, 1.7827, 9.4686, 3.9167, 2.9794, 1.2324, 48),
    24: (3.8712, 1.9675, 10.8759, 3.9583, 2.8094, 1.0225, 96),
    48: (4.5643, 2.1364, 12.2727, 3.9792, 2.6888, 0.8718, 192),
    72: (4.9698, 2.2293, 13.0871, 3.9861, 2.6333, 0.8021, 288),
    200: (5.9915, 2.4477, 15.1349, 3.9950, 2.5261, 0.6668, 800),
    1000: (7.6009, 2.7570, 18.3557, 3.9990, 2.4149, 0.5261, 4000),
}
# N = M: gamma_d, gamma_e; decoder, encoder, passed_on, total at v = w = 1; the same at gamma.
TWO_STACKS = {
    6: (1.7001, 1.5473, (8.8791, 8.0398, 1.4799, 20.7767), (3.0720, 3.3582, 1.4799, 8.0415)),
    18: (1.9972, 2.1829, (11.1138, 10.2936, 1.8523, 30.1806), (2.7861, 2.1603, 1.8523, 6.7877)),
    100: (2.3883, 3.1739, (14.5587, 13.7461, 2.4264, 47.9127), (2.5525, 1.3646, 2.4264, 5.8635)),
}
# N = M, first order: passed_on for l % 3 = 1 and = 2; total for l % 3 = 1 at v = w = 1, at gamma.
TWO_STACKS_FIRST_ORDER = {
    6: (0.7280, 0.6373, 6.6795, 2.5111),
    18: (0.6939, 0.6568, 6.7001, 1.5679),
    100: (0.6735, 0.6649, 6.6805, 0.9669),
}
ALIKE = ("pre", "sub")


def rounded(value: float) -> object:
    return pytest.approx(value, abs=5.0001e-5)


def gamma(layers: int) -> Scales:
    return derived_scales("sub", Depth("encoder", layers))


def ones(sublayers: int) -> Scales:
    return Scales.of(sublayers, 1, 1)


def harmonic(n: int) -> float:
    return sum(1 / k for k in range(1, n + 1))


@pytest.mark.parametrize("placement", ALIKE)
@pytest.mark.parametrize("layers", ONE_STACK)
def test_one_stack(layers: int, placement: str) -> None:
    square, gain, paper_1, first_1, paper_gain, first_gain, post = ONE_STACK[layers]
    scaled = gamma(layers)
    assert all(scale == rounded(gain) for scale in scaled.v + scaled.w)
    assert scaled.v[0] ** 2 == rounded(square)
    one = ones(2 * layers)
    assert bound(placement, one) == rounded(paper_1)
    assert bound(placement, one, form="first_order") == rounded(first_1)
    assert bound(placement, scaled) == rounded(paper_gain)
    assert bound(placement, scaled, form="first_order") == rounded(first_gain)
    assert bound("post", one) == pytest.approx(post)


def test_decoder_alone_is_as_encoder_alone() -> None:
    alone = derived_scales("sub", Depth("decoder", 12))
    assert alone == gamma(12)
    assert len(alone.v) == 24


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
        for which in ("second", "paper"):
            cross = cross_attentions(layers, which)
            made = encoder_decoder_bound(placement, *scales, cross=cross)
            terms = (made.decoder, made.encoder, made.passed_on, made.total)
            assert terms == tuple(rounded(value) for value in values)


@pytest.mark.parametrize("placement", ALIKE)
@pytest.mark.parametrize("layers", TWO_STACKS_FIRST_ORDER)
def test_two_stacks_first_order(layers: int, placement: str) -> None:
    passed_paper, passed_second, total_1, total_gain = TWO_STACKS_FIRST_ORDER[layers]
    one = (ones(2 * layers), ones(3 * layers))
    scaled = tuple(
        derived_scales("sub", Depth(stack, layers, layers)) for stack in ("encoder", "decoder")
    )
    paper = cross_attentions(layers, "paper")
    at_one = encoder_decoder_bound(placement, *one, cross=paper, form="first_order")
    at_gain = encoder_decoder_bound(placement, *scaled, cross=paper, form="first_order")
    second = encoder_decoder_bound(placement, *scaled, form="first_order")
    assert at_one.passed_on == rounded(passed_paper)
    assert at_gain.passed_on == rounded(passed_paper)
    assert second.passed_on == rounded(passed_second)
    assert at_one.total == rounded(total_1)
    assert at_gain.total == rounded(total_gain)


def test_two_stacks_total_tends_to_4() -> None:
    totals = []
    for layers in (100, 1000, 10000):
        scales = [derived_scales("sub", Depth(s, layers, layers)) for s in ("encoder", "decoder")]
        totals.append(encoder_decoder_bound("sub", *scales).total)
    assert totals[0] > totals[1] > totals[2] > 4
    # Each factor is 1 + 1.577 / log L of its limit; what is above 4 shrinks like 1 / log L.
    above = [(total - 4) * log(3 * n) for total, n in zip(totals, (1e2, 1e3, 1e4), strict=True)]
    assert max(above) / min(above) < 1.2


@pytest.mark.parametrize(("layers", "total"), [(6, 5.597), (18, 4.680), (100, 4.072)])
def test_two_stacks_as_implemented(layers: int, total: float) -> None:
    encoder = derived_scales("sub", Depth("encoder", layers, layers))
    decoder = derived_scales("sub", Depth("decoder", layers, layers), cross_gain=1)
    assert decoder.v[:3] == (decoder.v[0], 1, decoder.v[0])
    made = encoder_decoder_bound("sub", encoder, decoder)
    assert made.total == pytest.approx(total, abs=5.0001e-4)


@pytest.mark.parametrize(
    ("w6", "pre", "sub", "digits"),
    [(1, 9.469, 9.469, 3), (10, 27.78, 9.273, 2), (100, 2007.9, 9.271, 1)],
)
def test_one_exploding_sublayer(w6: float, pre: float, sub: float, digits: int) -> None:
    w = [1.0] * 24
    w[5] = w6
    scales = Scales.of(24, 1, w)
    assert round(bound("pre", scales), digits) == pre
    assert round(bound("sub", scales), 3) == sub


def test_the_exploding_sublayer_costs_pre_ln_nothing_in_the_other_forms() -> None:
    """The printed 2007.9 comes from k = l, where the sublayer multiplies itself."""
    w = [1.0] * 24
    w[5] = 100.0
    scales = Scales.of(24, 1, w)
    made = {
        (name, form): bound(name, scales, form=form)
        for name in ALIKE
        for form in FORMS
        if form != "paper"
    }
    assert {key: round(value, 3) for key, value in made.items()} == {
        ("pre", "first_order"): 3.000,
        ("sub", "first_order"): 3.815,
        ("pre", "telescoped"): 3.903,
        ("sub", "telescoped"): 5.489,
    }


def test_inequality_after_theorem_2() -> None:
    """The term of a sublayer with a large w_l is smaller in Sub-LN, each of 24 in turn."""
    for large in range(24):
        w = [1.0] * 24
        w[large] = 30.0
        scales = Scales.of(24, 1, w)
        term = {}
        for name in ALIKE:
            family = find_family(name)
            term[name] = family.step(1, 30.0) / sum(family.signals(scales))
        assert term["sub"] <= term["pre"]


@pytest.mark.parametrize(
    ("sublayers", "at_one"), [(12, 4.36), (48, 6.96), (144, 9.11), (400, 11.14)]
)
def test_telescoped(sublayers: int, at_one: float) -> None:
    for name in ALIKE:
        assert round(bound(name, ones(sublayers), form="telescoped"), 2) == at_one
        at_gain = bound(name, gamma(sublayers // 2), form="telescoped")
        assert 2.1 <= round(at_gain, 1) <= 2.3


@pytest.mark.parametrize(
    ("sublayers", "at_one", "at_gain"),
    [(12, 8.04, 3.24), (48, 10.88, 2.81), (144, 13.09, 2.63), (400, 15.13, 2.53)],
)
def test_printed_beside_the_telescoped(sublayers: int, at_one: float, at_gain: float) -> None:
    assert round(bound("pre", ones(sublayers)), 2) == at_one
    assert round(bound("pre", gamma(sublayers // 2)), 2) == at_gain


@pytest.mark.parametrize("sublayers", [2, 24, 144])
@pytest.mark.parametrize("gain", [0.5, 1.0, 2.2])
def test_closed_forms(sublayers: int, gain: float) -> None:
    scales = Scales.of(sublayers, gain, gain)
    square, number = gain * gain, sublayers
    above = 1 + harmonic(number - 1)
    terms = range(1, number + 1)
    for name in ALIKE:
        assert bound(name, scales) == pytest.approx(2 / square * above)
        assert bound(name, scales, form="first_order") == pytest.approx(
            2 / square * (2 - 1 / number)
        )
    assert bound("sub", scales, form="telescoped") == pytest.approx(
        sum(2 / (1 + k * square) for k in terms)
    )
    assert bound("pre", scales, form="telescoped") == pytest.approx(
        sum(2 * square / (1 + k * square * square) for k in terms)
    )


def test_closed_form_of_what_is_passed_on() -> None:
    made = encoder_decoder_bound("sub", ones(12), Scales.of(18, 3.0, 0.5))
    assert made.passed_on == pytest.approx((1 + harmonic(17)) / 3)


def naive_bound(v: list[float], w: list[float], name: str, form: str) -> float:
    """Compute the double sums as printed, no factoring out; the index range is the form's."""
    number = len(v)
    s = [v[n] ** 2 * (w[n] ** 2 if name == "pre" else 1) for n in range(number)]
    step = [
        v[n] ** 2 + w[n] ** 2 if name == "pre" else 1 + v[n] ** 2 / w[n] ** 2 for n in range(number)
    ]
    total = 0.0
    for n in range(1, number + 1):
        total += step[n - 1] / sum(s)
        for k in range(2 if form == "paper" else n + 1, number + 1):
            total += step[n - 1] / sum(s) * s[k - 1] / sum(s[: k - 1])
    return total


@pytest.mark.parametrize("name", ALIKE)
@pytest.mark.parametrize("form", ["paper", "first_order"])
def test_unequal_scales_against_the_double_sum(name: str, form: str) -> None:
    v = [0.3 + 0.2 * (n % 7) for n in range(20)]
    w = [1.9 - 0.15 * (n % 11) for n in range(20)]
    made = bound(name, Scales.of(20, v, w), form=form)  # type: ignore[arg-type]
    assert made == pytest.approx(naive_bound(v, w, name, form))


def test_telescoped_against_the_product() -> None:
    v = [0.3 + 0.2 * (n % 7) for n in range(20)]
    w = [1.9 - 0.15 * (n % 11) for n in range(20)]
    signals = [a**2 for a in v]
    total = 0.0
    for n in range(20):
        q = 1 / (1 + sum(signals))
        for k in range(n + 1, 20):
            q *= 1 + signals[k] / (1 + sum(signals[:k]))
        total += (1 + v[n] ** 2 / w[n] ** 2) * q
    assert bound("sub", Scales.of(20, v, w), form="telescoped") == pytest.approx(total)


@pytest.mark.parametrize("layers", [1, 6, 12, 18, 24, 36, 48, 72, 1000])
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
    assert made.total == pytest.approx(2, abs=0.0125)


def test_deepnorm_exact_constants() -> None:
    layers, other = 18, 12
    alpha = (layers**4 * other / 27) ** (1 / 16)
    beta = ((layers**4 * other / 27) ** (-1 / 8) / 2) ** 0.5
    assert alpha / (layers**4 * other) ** (1 / 16) == pytest.approx(0.81384, abs=5e-6)
    assert beta * (layers**4 * other) ** (1 / 16) == pytest.approx(0.86885, abs=5e-6)
    encoder = Scales.of(2 * layers, beta, beta, alpha)
    decoder = derived_scales("deepnorm", Depth("decoder", other, layers))
    assert encoder_decoder_bound("deepnorm", encoder, decoder).total == pytest.approx(2)


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
    with pytest.raises(ValueError, match="two depths"):
        growth_exponent([12, 12], [1, 1])


def test_standard_growth_is_2_log_depth_and_gain_flattens_it() -> None:
    for form in ("paper", "telescoped"):
        step = bound("pre", ones(4000), form=form) - bound("pre", ones(400), form=form)
        assert step == pytest.approx(2 * log(10), rel=0.02)
        assert 2 < bound("sub", gamma(2000), form=form) < bound("sub", gamma(200), form=form)
    assert bound("pre", ones(4000), form="first_order") < 4


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
    assert bound(mine, scales) == pytest.approx(2 / 9 * (1 + harmonic(11)))
    changes = (
        {"final": "none"},
        {"value_norm": "head"},
        {"gated": ("self_attention",)},
        {"first": PLACEMENTS["pre"]},
    )
    for change in changes:
        with pytest.raises(ValueError, match="no bound is derived"):
            bound(replace(mine, **change), scales)


def test_wrong_use_is_named() -> None:
    with pytest.raises(ValueError, match=r"unknown form 'telescoped'.*Known: paper"):
        bound("post", ones(4), form="telescoped")
    with pytest.raises(ValueError, match="alpha must be 1"):
        bound("sub", Scales.of(4, 1, 1, alpha=2.0))
    with pytest.raises(ValueError, match="v has 3 values for 4 sublayers"):
        Scales.of(4, [1, 1, 1], 1)
    with pytest.raises(ValueError, match="w of sublayer 2 must be a positive number, not 0"):
        Scales.of(4, 1, [1, 0, 1, 1])
    for bad in (float("nan"), float("inf"), -1.0, 1e30):
        with pytest.raises(ValueError, match="positive"):
            Scales.of(2, bad, 1)
    with pytest.raises(ValueError, match="one value per sublayer"):
        Scales((), ())
    with pytest.raises(ValueError, match="Known: second, paper"):
        cross_attentions(2, "third")
    for cross in ([0], [7], []):
        with pytest.raises(ValueError, match="must be 1 to 6"):
            encoder_decoder_bound("sub", ones(4), ones(6), cross=cross)


def test_cross_attention_indices() -> None:
    assert list(cross_attentions(3)) == [2, 5, 8]
    assert list(cross_attentions(3, "paper")) == [1, 4, 7]
    one = (ones(4), Scales.of(6, [1, 2, 1, 1, 2, 1], 1))
    by_default = encoder_decoder_bound("sub", *one)
    assert by_default == encoder_decoder_bound("sub", *one, cross=[2, 5])
    assert by_default.passed_on > encoder_decoder_bound("sub", *one, cross=[1, 4]).passed_on


def test_effective_scale() -> None:
    assert effective_scale(64, 2 / (64 + 64)) == pytest.approx(1)
    assert effective_scale(64, 2 / (64 + 256)) ** 2 == pytest.approx(0.4)
    assert effective_scale(256, 2 / (64 + 256)) ** 2 == pytest.approx(1.6)
    # What torch.nn.Linear draws: uniform within 1 / sqrt(fan_in), variance 1 / (3 fan_in).
    assert effective_scale(640, 1 / (3 * 640)) ** 2 == pytest.approx(1 / 3)
