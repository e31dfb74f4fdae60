"""What the built-in voice says: phones as formants and noise, and words as phones.

Formants of vowels are averages of American men (Hillenbrand et al. 1995, rounded); other phones are
set by ear to what textbooks give.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Phone:
    """How one phone sounds.

    Attributes:
        voice: Strength of the voice, 0 to 1.
        noise: Strength of breath, 0 to 1.
        formants: Centres of the first three resonances of the voice at its start, in Hz.
        end: The same at its end, of diphthongs; None for no change.
        hiss: Centre and width of the noise's band, in Hz.
        seconds: How long it lasts at an average rate.
        closure: Share of it that is silent at its start, of stops.
    """

    voice: float
    noise: float
    formants: tuple[float, float, float]
    seconds: float
    end: tuple[float, float, float] | None = None
    hiss: tuple[float, float] = (2500.0, 3000.0)
    closure: float = 0.0


PHONES = {
    # Vowels and diphthongs.
    "IY": Phone(1.0, 0.0, (340, 2320, 3000), 0.15),
    "IH": Phone(1.0, 0.0, (430, 2030, 2680), 0.10),
    "EH": Phone(1.0, 0.0, (580, 1800, 2610), 0.13),
    "AE": Phone(1.0, 0.0, (590, 1950, 2600), 0.17),
    "AH": Phone(1.0, 0.0, (620, 1200, 2550), 0.12),
    "AA": Phone(1.0, 0.0, (750, 1300, 2520), 0.17),
    "AO": Phone(1.0, 0.0, (600, 950, 2500), 0.17),
    "UW": Phone(1.0, 0.0, (370, 950, 2300), 0.16),
    "EY": Phone(1.0, 0.0, (500, 2000, 2650), 0.17, end=(380, 2250, 2850)),
    "AY": Phone(1.0, 0.0, (740, 1250, 2500), 0.20, end=(420, 2100, 2700)),
    "OW": Phone(1.0, 0.0, (520, 950, 2400), 0.17, end=(400, 850, 2300)),
    "AW": Phone(1.0, 0.0, (740, 1300, 2500), 0.20, end=(430, 950, 2350)),
    # Glides, liquids and nasals.
    "W": Phone(0.7, 0.0, (320, 700, 2200), 0.08),
    "Y": Phone(0.7, 0.0, (290, 2250, 3000), 0.07),
    "R": Phone(0.7, 0.0, (390, 1200, 1650), 0.09),
    "L": Phone(0.7, 0.0, (370, 1050, 2800), 0.08),
    "N": Phone(0.45, 0.0, (280, 1450, 2500), 0.09),
    # Fricatives.
    "F": Phone(0.0, 0.16, (400, 1300, 2500), 0.12, hiss=(4500, 6000)),
    "TH": Phone(0.0, 0.12, (400, 1400, 2600), 0.11, hiss=(5500, 5000)),
    "S": Phone(0.0, 0.45, (400, 1600, 2600), 0.13, hiss=(6000, 2200)),
    "Z": Phone(0.3, 0.35, (350, 1600, 2600), 0.10, hiss=(6000, 2200)),
    "V": Phone(0.4, 0.10, (350, 1200, 2400), 0.08, hiss=(4500, 5000)),
    # Stops: silence, then a burst.
    "T": Phone(0.0, 0.40, (400, 1700, 2700), 0.10, hiss=(4500, 3500), closure=0.5),
    "K": Phone(0.0, 0.40, (400, 1700, 2300), 0.11, hiss=(2000, 1500), closure=0.5),
    "P": Phone(0.0, 0.30, (400, 1000, 2300), 0.10, hiss=(900, 1800), closure=0.6),
    "D": Phone(0.25, 0.25, (350, 1700, 2650), 0.08, hiss=(4000, 3500), closure=0.4),
    "G": Phone(0.25, 0.25, (350, 1800, 2300), 0.08, hiss=(2000, 1500), closure=0.4),
}

DIGITS = {
    "zero": "Z IH R OW",
    "one": "W AH N",
    "two": "T UW",
    "three": "TH R IY",
    "four": "F AO R",
    "five": "F AY V",
    "six": "S IH K S",
    "seven": "S EH V AH N",
    "eight": "EY T",
    "nine": "N AY N",
}
COMMANDS = {
    "yes": "Y EH S",
    "no": "N OW",
    "up": "AH P",
    "down": "D AW N",
    "left": "L EH F T",
    "right": "R AY T",
    "on": "AA N",
    "off": "AO F",
    "stop": "S T AA P",
    "go": "G OW",
    "back": "P AE K",
    "wait": "W EY T",
}
