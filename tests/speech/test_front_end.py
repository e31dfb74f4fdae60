"""A quarter of the frames; padding changes nothing."""

import torch
from torch.nn import functional as F

from magneto.speech.config import TransducerConfig
from magneto.speech.model import FrontEnd


def test_it_is_two_pairs_of_convolutions_with_maxima() -> None:
    torch.manual_seed(0)
    config = TransducerConfig(mel_bins=8, front_channels=(3, 4), width=16, heads=2)
    front_end = FrontEnd(config)
    features = torch.randn(1, 16, 8)
    found, lengths = front_end(features, torch.tensor([16]))
    x = features[:, None]
    for pair in front_end.pairs:
        x = F.relu(F.conv2d(x, pair.first.weight, pair.first.bias, padding=1))
        x = F.relu(F.conv2d(x, pair.second.weight, pair.second.bias, padding=1))
        x = F.max_pool2d(x, 2)
    assert lengths.tolist() == [4]
    torch.testing.assert_close(found, front_end.proj(x.transpose(1, 2).flatten(2)))


def test_what_stands_in_the_padding_does_not_matter() -> None:
    front_end = FrontEnd(TransducerConfig(mel_bins=8, front_channels=(3, 4), width=16, heads=2))
    features = torch.randn(2, 21, 8)
    other = features.clone()
    other[0, 13:] = 7.0
    lengths = torch.tensor([13, 21])
    one, found = front_end(features, lengths)
    assert found.tolist() == [3, 5]
    torch.testing.assert_close(front_end(other, lengths)[0][0, :3], one[0, :3])
    torch.testing.assert_close(front_end(features[:1, :13], lengths[:1])[0], one[:1, :3])


def test_what_the_encoder_reads_at_first_changes_over_time() -> None:
    """Of its square at least 30 % on these sounds; as torch draws convolutions 1.5 to 8 %."""
    config = TransducerConfig(mel_bins=40, front_channels=(8, 16), width=96, heads=4)
    shares = []
    for seed in range(5):
        torch.manual_seed(seed)
        read = FrontEnd(config)(sounds(), torch.tensor([240]))[0][0]
        moving = read - read.mean(0)
        shares.append((moving.square().sum() / read.square().sum()).item())
    assert min(shares) > 0.2


def sounds() -> torch.Tensor:
    """Return features of 240 frames whose spectrum stays for 12 frames, then is another one."""
    coarse = torch.randn(1, 1, 20, 5, generator=torch.Generator().manual_seed(1))
    return F.interpolate(coarse, (240, 40), mode="bilinear")[0] * 1.5
