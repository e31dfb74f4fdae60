"""`magneto transcribe`: write down what is said in recordings, or in sound as it comes."""

from __future__ import annotations

import argparse
import json
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
    finite,
    is_standard_input,
    open_standard_input,
    standard_input_as_file,
)
from magneto.config import ConfigError
from magneto.files import nearest_path, write_text
from magneto.nn.config import wrong_sizes
from magneto.progress import ProgressBars
from magneto.runs import load_run
from magneto.speech.audio import header_seconds, is_recording
from magneto.speech.config import SYMBOLS_PER_FRAME, SpeechDataConfig
from magneto.speech.long_audio import file_pieces, raw_pieces

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
    add(
        "--raw", action="store_true",
        help="standard input is samples alone: 16 bits, little-endian, one channel; words come as "
        "it does",
    )  # fmt: skip
    add("--sample-rate", type=int, metavar="HZ", help="of --raw sound (the run's)")
    add("--window", type=float, help="seconds that are heard at once (20, or as trained on)")
    add("--overlap", type=float, help="seconds of it that are heard twice (a fifth)")
    recognition_search_options(made)
    add("--beams", type=int, default=4, help="hypotheses of a beam (4)")
    add("--n-best", type=int, metavar="K", help="K lines each: recording's number, score, text")
    add("--batch-size", type=int, default=8, help="windows at a time (8)")
    made.set_defaults(kind="txt")
    return made


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

    sizes = {"beams": given.beams, "symbols_per_frame": given.symbols_per_frame}
    if wrong := wrong_sizes(sizes):
        raise ConfigError(wrong)
    if given.search == "modified":
        return ModifiedBeamSearch(width=given.beams, count=count)
    return GreedySearch(given.symbols_per_frame)


def main(words: Sequence[str]) -> int:
    """Run the command."""
    made = parser()
    given, overrides = made.parse_with_overrides(words)
    check(made, given)
    opened: Any = load_run(given.run, given.weights, overrides, "transcribe")
    data: SpeechDataConfig = opened.recipe.data
    window = given.window or min(WINDOW, data.max_duration)
    overlap = given.overlap or OVERLAP * window
    from magneto.speech.long_audio import Transcriber

    transcriber = Transcriber(
        opened.model, opened.task.vocabulary, data, search_of(given, given.n_best or 1),
        window, overlap, 1 if given.raw else given.batch_size,
    )  # fmt: skip
    with ExitStack() as stack:
        paths = [Path(name) for name in given.files]
        if STDIN in given.files and not given.raw:
            paths = [stack.enter_context(recording_from_standard_input())]
        run = Transcription(transcriber, given, paths)
        run.run() if given.n_best is None else run.n_best()
    return 0


@contextmanager
def recording_from_standard_input() -> Iterator[Path]:
    """Yield the recording on standard input as a file.

    Raises:
        ConfigError: If its first bytes are those of none.
    """
    first = open_standard_input().read(4)
    if not is_recording(first):
        raise ConfigError(["standard input is no recording (.wav, .flac, .ogg, .mp3) by its first "
                           "bytes; of samples alone say so: --raw"])  # fmt: skip
    with standard_input_as_file(first, ending=".sound") as path:
        yield path


def check_n_best(made: Parser, given: argparse.Namespace) -> None:
    """Refuse lists of hypotheses that can't be had."""
    if given.search == "greedy":
        made.error("--n-best needs a beam: --search modified")
    if not 1 <= given.n_best <= given.beams:
        made.error(f"--n-best {given.n_best}: 1 to --beams ({given.beams})")
    if given.raw or given.kind == "srt":
        made.error("--n-best is of recordings in files, as text or --json")


def check(made: Parser, given: argparse.Namespace) -> None:
    """Refuse what can't be done, before a model is loaded."""
    given.files = [STDIN if is_standard_input(name) else name for name in given.files]
    if given.n_best is not None:
        check_n_best(made, given)
    if STDIN in given.files and len(given.files) > 1:
        made.error("standard input (-) is transcribed alone")
    if STDIN in given.files and (sys.stdin is None or sys.stdin.isatty()):
        made.error("standard input must be a recording: ... | magneto transcribe RUN -")
    if given.raw and given.files != [STDIN]:
        made.error("--raw is of standard input: arecord ... | magneto transcribe RUN - --raw")
    if given.sample_rate is not None and not given.raw:
        made.error("--sample-rate is of --raw sound: recordings say theirs")
    if sys.stdout is None and given.out is None:
        made.error("standard output must be open, or give --out DIR")
    if given.kind == "srt" and len(given.files) > 1 and given.out is None:
        made.error("subtitles of several recordings need --out DIR: a .srt each")
    for name in ("batch_size", "sample_rate"):
        if getattr(given, name) is not None and getattr(given, name) < 1:
            made.error(f"--{name.replace('_', '-')} must be 1 or more")
    for name in given.files:
        if name != STDIN and not Path(name).is_file():
            raise FileNotFoundError(f"no recording {name}{nearest_path(Path(name))}")
    stems = [Path(name).stem for name in given.files]
    if given.out is not None and len(set(stems)) < len(stems):
        made.error("--out needs recordings of different names")


class Transcription:
    """Transcribes what was asked for, and writes it.

    Args:
        transcriber: Of a run's model.
        given: The command's options.
        paths: Where the recordings are that are named there.
    """

    def __init__(
        self, transcriber: Transcriber, given: argparse.Namespace, paths: Sequence[Path]
    ) -> None:
        self.transcriber, self.given, self.paths = transcriber, given, paths
        self.report = ProgressBars()
        self.streamed: bool = given.raw

    def run(self) -> None:
        """Transcribe, and write each transcript when it is whole; of a stream, words at once.

        Raises:
            ValueError: If there was nothing to hear in any recording.
        """
        words: list[Word] = []
        files, at_once = self.given.files, self.streamed and self.given.kind in ("txt", "jsonl")
        headers = [] if self.streamed else [header_seconds(str(path)) for path in self.paths]
        total = sum(seconds for seconds, _ in headers)
        recordings = (
            [self._stream()]
            if self.streamed
            else [self._file(*each) for each in zip(files, self.paths, headers, strict=True)]
        )
        heard, least = False, self.transcriber.least_seconds
        for part in self.transcriber.transcribe(recordings):
            heard = heard or part.seconds >= least
            if at_once and self.given.out is None:
                self._show(part.words, part.last)
                continue
            words += part.words
            if part.last:
                self._write(files[part.recording], words)
                words = []
            if not self.streamed:
                before = sum(seconds for seconds, _ in headers[: part.recording])
                done = min(round(before + part.seconds), round(total))
                self.report.update("transcribing seconds", done, round(total))
        self.report.finish()
        self._check_heard(heard)

    def n_best(self) -> None:
        """Transcribe recordings that are heard at once, and write several hypotheses of each.

        Raises:
            ValueError: If there was nothing to hear in any recording, or one is too long.
        """
        files, heard = self.given.files, False
        headers = [header_seconds(str(path)) for path in self.paths]
        longest = self.transcriber.size / self.transcriber.rate
        for name, (seconds, _) in zip(files, headers, strict=True):
            if seconds > longest:
                raise ValueError(f"{name} takes {seconds:.3g} s, and an n-best list is of what is "
                                 f"heard at once: {longest:g} s (--window)")  # fmt: skip
        recordings = [self._file(*each) for each in zip(files, self.paths, headers, strict=True)]
        for number, found in enumerate(self.transcriber.n_best(recordings), 1):
            heard = heard or found.seconds >= self.transcriber.least_seconds
            lines = [f"{number}\t{score:.4f}\t{text}\n" for text, score in found.texts]
            if self.given.kind == "jsonl":
                each = [{"text": text, "score": score} for text, score in found.texts]
                record = self._record(files[number - 1], found.words) | {"transcripts": each}
                lines = [json.dumps(finite(record), ensure_ascii=False) + "\n"]
            self._put(files[number - 1], "".join(lines))
            self.report.update("transcribing recordings", number, len(files))
        self.report.finish()
        self._check_heard(heard)

    def _check_heard(self, heard: bool) -> None:
        """Raise ValueError if there was nothing to hear."""
        if not heard:
            several = f"none of {len(self.given.files)} recordings has"
            what = "standard input has" if self.streamed else several
            raise ValueError(f"{what} any sound that can be transcribed")

    def _file(self, name: str, path: Path, header: tuple[float, str]) -> Iterator[np.ndarray]:
        """Yield a file's samples; say what is wrong with it."""
        told = [header[1]] if header[1] else []
        yield from file_pieces(path, self.transcriber.rate, told.append)
        for problem in dict.fromkeys(told):
            self.report.say(f"{name}: {problem}")

    def _stream(self) -> Iterator[np.ndarray]:
        """Yield the samples of standard input as they come."""
        rate = self.transcriber.rate
        yield from raw_pieces(open_standard_input(), self.given.sample_rate or rate, rate)

    def _show(self, words: list[Word], last: bool) -> None:
        """Print the words that are settled now."""
        if self.given.kind == "jsonl":
            print(self._text(STDIN, words) if words else "", end="", flush=True)
        else:
            text = "".join(f"{word.text} " for word in words)
            print(text, end="\n" if last else "", flush=True)

    def _write(self, name: str, words: list[Word]) -> None:
        text = self._text(name, words)
        several = self.given.kind == "txt" and len(self.given.files) > 1 and self.given.out is None
        self._put(name, f"{name}\t{text}" if several else text)

    def _put(self, name: str, text: str) -> None:
        """Print what is said in a recording, or write it into its file."""
        out = self.given.out
        if out is None:
            print(text, end="", flush=True)
            return
        out.mkdir(parents=True, exist_ok=True)
        stem = "stdin" if name == STDIN else Path(name).stem
        write_text(out / f"{stem}.{self.given.kind}", text)

    def _text(self, name: str, words: list[Word]) -> str:
        """Return a transcript in the wanted form."""
        text = " ".join(word.text for word in words)
        if self.given.kind == "srt":
            return as_srt(words)
        if self.given.kind == "jsonl":
            return json.dumps(self._record(name, words), ensure_ascii=False) + "\n"
        return text + "\n"

    def _record(self, name: str, words: list[Word]) -> dict[str, Any]:
        """Return a transcript and the times of its words as plain values."""
        rounded = [
            asdict(word) | {"start": round(word.start, 3), "end": round(word.end, 3)}
            for word in words
        ]
        return {"file": name, "text": " ".join(word.text for word in words), "words": rounded}


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
            found.append([word])
        else:
            line.append(word)
    return "\n".join(
        f"{number}\n{_clock(line[0].start)} --> {_clock(line[-1].end)}\n"
        f"{' '.join(word.text for word in line)}\n"
        for number, line in enumerate(found, 1)
    )


def _clock(seconds: float) -> str:
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    minutes, whole = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02d}:{minutes:02d}:{whole:02d},{thousandths:03d}"
