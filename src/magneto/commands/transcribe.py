"""`magneto transcribe`: write down what is said in recordings, or in sound as it comes."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from magneto.commands.shared import (
    STDIN,
    Parser,
    check_file,
    is_standard_input,
    open_standard_input,
    standard_input_as_file,
)
from magneto.config import ConfigError
from magneto.fields import configuration
from magneto.files import plain, write_text
from magneto.nn.config import Beams, Width
from magneto.progress import ProgressBars
from magneto.runs import load_run
from magneto.speech.audio import header_seconds, is_recording, raw_pieces, sound_pieces
from magneto.speech.config import SYMBOLS_PER_FRAME, SpeechDataConfig

if TYPE_CHECKING:
    from magneto.speech.decoding import Search
    from magneto.speech.long_audio import Transcriber, Word

# Seconds that a model hears at once, if it was trained on as long ones; and of these the share that
# is heard twice.
WINDOW, OVERLAP = 20.0, 0.2
# Of one subtitle: two lines of 42 characters, what a reader can follow, and a pause that ends it.
MOST_CHARACTERS, MOST_SECONDS, PAUSE = 84, 6.0, 1.0


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "transcribe",
        "Write down what is said in recordings (.wav, .flac, .ogg, .mp3), of any length, in files "
        "or from\nstandard input (-); with --raw, in sound that comes there without a header.",
        "magneto transcribe runs/first a.wav b.flac --srt --out subtitles\n"
        "  arecord -q -f S16_LE -r 16000 -t raw | magneto transcribe runs/first - --raw",
        recipe=True,
    ).with_run("speech recognition ")
    add = made.add_argument
    add("files", nargs="+", metavar="FILE", help="recordings; - for standard input")
    kinds = made.add_mutually_exclusive_group()
    for option, kind, what in (
        ("--srt", "srt", "SubRip subtitles"),
        ("--json", "jsonl", "a JSON object per recording, with the times of words"),
    ):
        kinds.add_argument(option, dest="kind", action="store_const", const=kind, help=what)
    add("--out", type=Path, metavar="DIR", help="a file per recording there")
    add("--raw", action="store_true", help="standard input is samples alone, at the run's sample "
        "rate: 16 bits, little-endian, one channel; words come as it does")  # fmt: skip
    add("--window", type=float, help="seconds that are heard at once (20, or as trained on)")
    recognition_search_options(made)
    add("--beams", type=int, default=4, help="hypotheses of a beam (4)")
    add("--n-best", type=int, metavar="K", help="K lines each: recording's number, score, text")
    add("--batch-size", type=int, default=8, help="windows at a time (8)")
    made.set_defaults(kind="txt")
    return made


@configuration
class SearchOptions:
    """How wide a search is."""

    beams: Beams
    symbols_per_frame: Width


def recognition_search_options(made: Any) -> None:
    """Add how transcripts are searched for, but for the width of a beam."""
    made.add_argument(
        "--search", choices=("greedy", "modified"), default="greedy",
        help="greedy; or by --beams, with at most one label per frame",
    )  # fmt: skip
    made.add_argument(
        "--symbols-per-frame", type=int, default=SYMBOLS_PER_FRAME, metavar="N",
        help=f"labels at one frame, greedy ({SYMBOLS_PER_FRAME})",
    )  # fmt: skip


def search_of(given: argparse.Namespace, count: int = 1) -> Search:
    """Return the search that was asked for, of so many hypotheses."""
    from magneto.speech.decoding import GreedySearch, ModifiedBeamSearch

    how = SearchOptions(beams=given.beams, symbols_per_frame=given.symbols_per_frame)
    if given.search == "modified":
        return ModifiedBeamSearch(width=how.beams, count=count)
    return GreedySearch(how.symbols_per_frame)


def main(words: Sequence[str]) -> int:
    """Run the command."""
    made = parser()
    given, overrides = made.parse_with_overrides(words)
    check(made, given)
    opened: Any = load_run(given.run, given.weights, overrides, "transcribe")
    data: SpeechDataConfig = opened.recipe.data
    window = given.window or min(WINDOW, data.max_duration)
    from magneto.speech.long_audio import Transcriber

    transcriber = Transcriber(
        opened.model, opened.task.vocabulary, data, search_of(given, given.n_best or 1),
        window, OVERLAP * window, 1 if given.raw else given.batch_size,
    )  # fmt: skip
    with ExitStack() as stack:
        paths = [Path(name) for name in given.files]
        if STDIN in given.files and not given.raw:
            paths = [stack.enter_context(recording_from_standard_input())]
        if not transcribe(transcriber, given, paths):
            of = "standard input" if STDIN in given.files else f"{len(paths)} recordings"
            raise ValueError(f"no sound in {of} that can be transcribed")
    return 0


def check(made: Parser, given: argparse.Namespace) -> None:
    """Refuse what can't be done, before a model is loaded."""
    given.files = [STDIN if is_standard_input(name) else name for name in given.files]
    piped, several = STDIN in given.files, len(given.files) > 1
    if given.n_best is not None:
        if given.search == "greedy":
            made.error("--n-best needs a beam: --search modified")
        if not 1 <= given.n_best <= given.beams:
            made.error(f"--n-best {given.n_best}: 1 to --beams ({given.beams})")
        if given.raw or given.kind == "srt":
            made.error("--n-best is of recordings in files, as text or --json")
    if piped and several:
        made.error("standard input (-) is transcribed alone")
    if piped and (sys.stdin is None or sys.stdin.isatty()):
        made.error("standard input must be a recording: ... | magneto transcribe RUN -")
    if given.raw and not piped:
        made.error("--raw is of standard input: arecord ... | magneto transcribe RUN - --raw")
    if sys.stdout is None and given.out is None:
        made.error("standard output must be open, or give --out DIR")
    if given.kind == "srt" and several and given.out is None:
        made.error("subtitles of several recordings need --out DIR: a .srt each")
    if given.window is not None and not 0 < given.window < math.inf:
        made.error(f"--window must be above 0, not {given.window}")
    if given.batch_size < 1:
        made.error("--batch-size must be 1 or more")
    for name in given.files:
        if name != STDIN:
            check_file(name, "recording")
    stems = [Path(name).stem for name in given.files]
    if given.out is not None and len(set(stems)) < len(stems):
        made.error("--out needs recordings of different names")


@contextmanager
def recording_from_standard_input() -> Iterator[Path]:
    """Yield the recording on standard input as a file."""
    first = open_standard_input().read(4)
    if not is_recording(first):
        raise ConfigError(["standard input is no recording (.wav, .flac, .ogg, .mp3) by its first "
                           "bytes; of samples alone say so: --raw"])  # fmt: skip
    with standard_input_as_file(first, ending=".sound") as path:
        yield path


def transcribe(transcriber: Transcriber, given: argparse.Namespace, paths: Sequence[Path]) -> bool:
    """Write the transcript of each recording when it is whole; of raw sound, words at once.

    Returns:
        Whether there was sound in any.

    Raises:
        ValueError: If several hypotheses are asked for, and a recording is longer than a window.
    """
    report, rate = ProgressBars(), transcriber.rate
    headers = [] if given.raw else [header_seconds(str(path)) for path in paths]
    lengths = [seconds for seconds, _ in headers]

    def samples(name: str, path: Path, problem: str) -> Iterator[np.ndarray]:
        problems = [problem] if problem else []
        yield from sound_pieces(path, rate, problems.append)
        for each in dict.fromkeys(problems):
            report.say(f"{name}: {each}")

    sounds = [raw_pieces(open_standard_input(), rate, rate)] if given.raw else []
    sounds += [samples(name, path, problem) for name, path, (_, problem)
               in zip(given.files, paths, headers, strict=False)]  # fmt: skip
    at_once = given.raw and given.out is None and given.kind != "srt"
    words: list[Word] = []
    heard = False
    for part in transcriber.transcribe(sounds):
        if given.n_best is not None and not part.texts:
            raise ValueError(f"{given.files[part.recording]} takes more than a window of "
                             f"{transcriber.size / rate:g} s: an n-best list is of what is heard "
                             "at once (--window)")  # fmt: skip
        heard = heard or part.seconds >= transcriber.least_seconds
        words += part.words
        if at_once and given.kind == "txt":
            text = "".join(f"{word.text} " for word in words)
            print(text, end="\n" if part.last else "", flush=True)
            words = []
        elif part.last or (at_once and words):
            write(given, part.recording, words, part.texts)
            words = []
        if headers:
            done = min(sum(lengths[: part.recording]) + part.seconds, sum(lengths))
            report.update("transcribing seconds", round(done), round(sum(lengths)))
    report.finish()
    return heard


def write(
    given: argparse.Namespace,
    number: int,
    words: Sequence[Word],
    hypotheses: Sequence[tuple[str, float]],
) -> None:
    """Print what is said in a recording, or write it into its file.

    Args:
        given: The command's options.
        number: Of the recording.
        words: That are said.
        hypotheses: Texts with their scores, of what was heard at once.
    """
    name, text = given.files[number], " ".join(word.text for word in words)
    if given.kind == "srt":
        written = as_srt(words)
    elif given.kind == "jsonl":
        times = [asdict(word) | {"start": round(word.start, 3), "end": round(word.end, 3)}
                 for word in words]  # fmt: skip
        record: dict[str, Any] = {"file": name, "text": text, "words": times}
        if given.n_best is not None:
            record["transcripts"] = [{"text": t, "score": score} for t, score in hypotheses]
        written = json.dumps(plain(record), ensure_ascii=False) + "\n"
    elif given.n_best is not None:
        written = "".join(f"{number + 1}\t{score:.4f}\t{t}\n" for t, score in hypotheses)
    else:
        several = len(given.files) > 1 and given.out is None
        written = f"{name}\t{text}\n" if several else f"{text}\n"
    if given.out is None:
        print(written, end="", flush=True)
        return
    given.out.mkdir(parents=True, exist_ok=True)
    stem = "stdin" if name == STDIN else Path(name).stem
    write_text(given.out / f"{stem}.{given.kind}", written)


def as_srt(words: Sequence[Word]) -> str:
    """Return SubRip subtitles: each can be read at once, and none goes on over a pause."""
    found: list[list[Word]] = []
    for word in words:
        line = found[-1] if found else []
        characters = sum(len(each.text) + 1 for each in line) + len(word.text)
        if (
            not line
            or characters > MOST_CHARACTERS
            or word.end - line[0].start > MOST_SECONDS
            or word.start - line[-1].end > PAUSE
        ):
            found.append(line := [])
        line.append(word)
    return "\n".join(
        f"{number}\n{clock(line[0].start)} --> {clock(line[-1].end)}\n"
        f"{' '.join(word.text for word in line)}\n"
        for number, line in enumerate(found, 1)
    )


def clock(seconds: float) -> str:
    """Return a time as SubRip writes it."""
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d},{thousandths:03d}"
