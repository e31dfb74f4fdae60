"""VQA's published rules of evaluation once more, written letter by letter for the tests.

Nothing here is shared with the package: no regular expressions, no table that is derived, one
annotator left out at a time.
"""

from collections.abc import Sequence
from fractions import Fraction

MARKS = [";", "/", "[", "]", '"', "{", "}", "(", ")", "=", "+", "\\", "_", "-", ">", "<", "@", "`",
         ",", "?", "!"]  # fmt: skip
DIGITS = {"none": 0, "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6,
          "seven": 7, "eight": 8, "nine": 9, "ten": 10}  # fmt: skip
# Misspelt and mended, as they are published (those with a capital never meet a small letter).
MENDED = """
aint ain't|arent aren't|cant can't|couldve could've|couldnt couldn't|couldn'tve couldn't've
couldnt've couldn't've|didnt didn't|doesnt doesn't|dont don't|hadnt hadn't|hadnt've hadn't've
hadn'tve hadn't've|hasnt hasn't|havent haven't|hed he'd|hed've he'd've|he'dve he'd've|hes he's
howd how'd|howll how'll|hows how's|Id've I'd've|I'dve I'd've|Im I'm|Ive I've|isnt isn't|itd it'd
itd've it'd've|it'dve it'd've|itll it'll|let's let's|maam ma'am|mightnt mightn't
mightnt've mightn't've|mightn'tve mightn't've|mightve might've|mustnt mustn't|mustve must've
neednt needn't|notve not've|oclock o'clock|oughtnt oughtn't|ow's'at 'ow's'at|'ows'at 'ow's'at
'ow'sat 'ow's'at|shant shan't|shed've she'd've|she'dve she'd've|she's she's|shouldve should've
shouldnt shouldn't|shouldnt've shouldn't've|shouldn'tve shouldn't've|somebody'd somebodyd
somebodyd've somebody'd've|somebody'dve somebody'd've|somebodyll somebody'll|somebodys somebody's
someoned someone'd|someoned've someone'd've|someone'dve someone'd've|someonell someone'll
someones someone's|somethingd something'd|somethingd've something'd've|something'dve something'd've
somethingll something'll|thats that's|thered there'd|thered've there'd've|there'dve there'd've
therere there're|theres there's|theyd they'd|theyd've they'd've|they'dve they'd've|theyll they'll
theyre they're|theyve they've|twas 'twas|wasnt wasn't|wed've we'd've|we'dve we'd've|weve we've
werent weren't|whatll what'll|whatre what're|whats what's|whatve what've|whens when's|whered where'd
wheres where's|whereve where've|whod who'd|whod've who'd've|who'dve who'd've|wholl who'll|whos who's
whove who've|whyll why'll|whyre why're|whys why's|wont won't|wouldve would've|wouldnt wouldn't
wouldnt've wouldn't've|wouldn'tve wouldn't've|yall y'all|yall'll y'all'll|y'allll y'all'll
yall'd've y'all'd've|y'alld've y'all'd've|y'all'dve y'all'd've|youd you'd|youd've you'd've
you'dve you'd've|youll you'll|youre you're|youve you've
"""
CONTRACTIONS = dict(pair.split(" ") for pair in MENDED.strip().replace("\n", "|").split("|"))


def without_punctuation(text: str) -> str:
    """Take marks out: with a gap, or without one by two conditions on the whole text."""
    comma = any(
        text[i] == "," and text[i - 1].isdigit() and text[i + 1].isdigit()
        for i in range(1, len(text) - 1)
    )
    closed = {m for m in MARKS if m + " " in text or " " + m in text}
    letters = [
        letter if letter not in MARKS else "" if comma or letter in closed else " "
        for letter in text
    ]
    spaced = "".join(letters)
    left, found = 32, []
    for place, letter in enumerate(spaced):
        digit_follows = place + 1 < len(spaced) and spaced[place + 1].isdigit()
        if letter == "." and not digit_follows and left > 0:
            left -= 1
        else:
            found.append(letter)
    return "".join(found)


def small_words(text: str) -> str:
    """Lower the letters, then look at each word by itself."""
    kept = []
    for written in text.lower().split():
        word = str(DIGITS[written]) if written in DIGITS else written
        if word in ("a", "an", "the"):
            continue
        kept.append(CONTRACTIONS.get(word, word))
    return " ".join(kept)


def normalised(text: str) -> str:
    return small_words(without_punctuation(text))


def accuracy(answer: str, annotators: Sequence[str], always: bool = False) -> Fraction:
    """Average over the annotators, one left out at a time."""

    def blanks(text: str) -> str:
        return "".join(" " if letter in "\n\t" else letter for letter in text).strip()

    said, others = blanks(answer), [blanks(one) for one in annotators]
    if always or any(one != others[0] for one in others):
        said, others = normalised(said), [normalised(one) for one in others]
    total = Fraction(0)
    for left_out in range(len(others)):
        agree = sum(one == said for i, one in enumerate(others) if i != left_out)
        total += min(Fraction(1), Fraction(agree, 3))
    return total / len(others)
