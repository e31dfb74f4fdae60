"""`magneto transcribe`: write down what is said in recordings, or in sound as it comes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from magneto.commands.arguments import Parser
from magneto.config import ConfigError
from magneto.files import nearest_path, write_text
from magneto.progress import ProgressBars
from magneto.runs import load_run
from magneto.speech.audio import header_seconds
from magneto.speech.config import SYMBOLS_PER_FRAME, SpeechDataConfig
from magneto.speech.pieces import file_pieces, raw_pieces

if TYPE_CHECKING:
    from magneto.speech.decoding import Search
    from magneto.speech.transcriber import Transcriber
    from magneto.speech.words import Word

STDIN = "-"
# Seconds that a model hears at once, if it was trained on as long ones; and of these the share that
# is heard twice.
WINDOW, OVERLAP = 20.0, 0.2


def parser() -> Parser:
    """Return the command's parser."""
    made = Parser(
        "transcribe",
        "Write down what is said in recordings (.wav, .flac, .ogg, .mp3), of any length, or in raw "
        "sound from\nstandard input (-: 16 bits, one channel), as it comes.",
        "magneto transcribe runs/first a.wav b.flac --srt --out subtitles\n"
        "  arecord -q -f S16_LE -r 16000 -t raw | magneto transcribe runs/first -",
        recipe=True,
    )
    add = made.add_argument
    add("run", type=Path, help="directory of a speech recognition run")
    add("files", nargs="+", metavar="FILE", help="recordings; - for standard input")
    add("--weights", default="auto", help="best (default), final, averaged, last or a step")
    kinds = made.add_mutually_exclusive_group()
    known = {
        "srt": "SubRip subtitles",
        "vtt": "WebVTT subtitles",
        "jsonl": "a JSON object per recording, with the times of words",
    }
    for name, what in known.items():
        kinds.add_argument(f"--{name}", dest="kind", action="store_const", const=name, help=what)
    add("--out", type=Path, metavar="DIR", help="a file per recording there")
    add("--sample-rate", type=int, help="of standard input, in Hz (the run's)")
    add("--window", type=float, help="seconds that are heard at once (20, or as trained on)")
    add("--overlap", type=float, help="seconds of it that are heard twice (a fifth)")
    recognition_search_options(made)
    add("--beams", type=int, default=4, help="hypotheses of a beam (4)")
    add("--batch-size", type=int, default=8, help="windows at a time (8)")
    made.set_defaults(kind="txt")
    return made


def recognition_search_options(made: Any) -> None:
    """Add how transcripts are searched for, but for the width of a beam."""
    made.add_argument(
        "--search", choices=("greedy", "modified", "alignment-length"), default="greedy",
        help="greedy; or by --beams, with at most one label per frame or with any number",
    )  # fmt: skip
    made.add_argument(
        "--symbols-per-frame", type=int, default=SYMBOLS_PER_FRAME, metavar="N",
        help=f"labels at one frame, greedy ({SYMBOLS_PER_FRAME})",
    )  # fmt: skip


def search_of(given: argparse.Namespace) -> Search:
    """Return the search that was asked for."""
    from magneto.speech.beam_search import AlignmentLengthBeamSearch, ModifiedBeamSearch
    from magneto.speech.decoding import GreedySearch

    if given.beams < 1 or given.symbols_per_frame < 1:
        raise ConfigError(["--beams and --symbols-per-frame must be 1 or more"])
    if given.search == "modified":
        return ModifiedBeamSearch(width=given.beams)
    if given.search == "alignment-length":
        return AlignmentLengthBeamSearch(width=given.beams)
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
    streamed = given.files == [STDIN]
    from magneto.speech.transcriber import Transcriber

    transcriber = Transcriber(
        opened.model, opened.task.vocabulary, data, search_of(given), window, overlap,
        1 if streamed else given.batch_size,
    )  # fmt: skip
    Transcription(transcriber, given).run()
    return 0


def check(made: Parser, given: argparse.Namespace) -> None:
    """Refuse what can't be done, before a model is loaded."""
    if STDIN in given.files and len(given.files) > 1:
        made.error("standard input (-) is transcribed alone")
    if given.kind in ("srt", "vtt") and len(given.files) > 1 and given.out is None:
        made.error(f"subtitles of several recordings need --out DIR: a .{given.kind} each")
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
    """

    def __init__(self, transcriber: Transcriber, given: argparse.Namespace) -> None:
        self.transcriber, self.given = transcriber, given
        self.report = ProgressBars()
        self.streamed = given.files == [STDIN]

    def run(self) -> None:
        """Transcribe, and write each transcript when it is whole; of a stream, words at once.

        Raises:
            ValueError: If there was nothing to hear in any recording.
        """
        words: list[Word] = []
        files, at_once = self.given.files, self.streamed and self.given.kind in ("txt", "jsonl")
        headers = [] if self.streamed else [header_seconds(name) for name in files]
        total = sum(seconds for seconds, _ in headers)
        recordings = (
            [self._stream()]
            if self.streamed
            else [self._file(*each) for each in zip(files, headers, strict=True)]
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
        if not heard:
            what = "standard input has" if self.streamed else f"none of {len(files)} recordings has"
            raise ValueError(f"{what} any sound that can be transcribed")

    def _file(self, name: str, header: tuple[float, str]) -> Iterator[np.ndarray]:
        """Yield a file's samples; say what is wrong with it."""
        told = [header[1]] if header[1] else []
        yield from file_pieces(Path(name), self.transcriber.rate, told.append)
        for problem in dict.fromkeys(told):
            self.report.say(f"{name}: {problem}")

    def _stream(self) -> Iterator[np.ndarray]:
        """Yield the samples of standard input as they come."""
        rate = self.transcriber.rate
        yield from raw_pieces(sys.stdin.buffer, self.given.sample_rate or rate, rate)

    def _show(self, words: list[Word], last: bool) -> None:
        """Print the words that are settled now."""
        if self.given.kind == "jsonl":
            print(self._text(STDIN, words) if words else "", end="", flush=True)
        else:
            text = "".join(f"{word.text} " for word in words)
            print(text, end="\n" if last else "", flush=True)

    def _write(self, name: str, words: list[Word]) -> None:
        kind, out = self.given.kind, self.given.out
        text = self._text(name, words)
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            stem = "stdin" if name == STDIN else Path(name).stem
            write_text(out / f"{stem}.{kind}", text)
        elif kind == "txt" and len(self.given.files) > 1:
            print(f"{name}\t{text}", end="", flush=True)
        else:
            print(text, end="", flush=True)

    def _text(self, name: str, words: list[Word]) -> str:
        """Return a transcript in the wanted form."""
        from magneto.speech.subtitles import as_srt, as_vtt

        text = " ".join(word.text for word in words)
        if self.given.kind == "srt":
            return as_srt(words)
        if self.given.kind == "vtt":
            return as_vtt(words)
        if self.given.kind == "jsonl":
            rounded = [
                asdict(word) | {"start": round(word.start, 3), "end": round(word.end, 3)}
                for word in words
            ]
            record = {"file": name, "text": text, "words": rounded}
            return json.dumps(record, ensure_ascii=False) + "\n"
        return text + "\n"
