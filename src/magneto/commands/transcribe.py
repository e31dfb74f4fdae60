"""`magneto transcribe`: transcription of recordings and of live audio."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from magneto.commands.shared import (
    STDIN,
    Parser,
    above_zero,
    at_least_one,
    check_file,
    check_folder,
    open_standard_input,
    read_as,
)
from magneto.config import ConfigError
from magneto.data.formats import BEGINNINGS
from magneto.files import plain, user_path, write_text
from magneto.nn.config import BEAMS, Beams, Width
from magneto.progress import ProgressBars
from magneto.runs import load_run, run_task
from magneto.speech.audio import header_seconds, raw_pieces, sound_pieces
from magneto.speech.config import SYMBOLS_PER_FRAME, SpeechDataConfig

if TYPE_CHECKING:
    from magneto.speech.decoding import Search
    from magneto.speech.long_audio import Transcriber, Word

# Seconds of a window, unless the model was trained on shorter recordings.
WINDOW = 20.0
# Limits of a subtitle: two lines of 42 characters, its seconds, and a pause that ends it.
MOST_CHARACTERS, MOST_SECONDS, PAUSE = 84, 6.0, 1.0


def parser() -> Parser:
    made = Parser(
        "transcribe",
        "Transcribe recordings (.wav, .flac, .ogg, .mp3) of any length, from files or standard "
        "input (-). With --raw, transcribe samples from standard input as they arrive.",
        "magneto transcribe runs/first a.wav b.flac --srt --out subtitles\n"
        "  arecord -q -f S16_LE -r 16000 -t raw | magneto transcribe runs/first - --raw",
        recipe=True,
    ).with_run("speech recognition ")
    made.add_argument("files", nargs="+", metavar="FILE", help="recordings; - for standard input")
    add = partial(made.add_mutually_exclusive_group().add_argument, dest="kind")
    add("--srt", action="store_const", const="srt", help="print SubRip subtitles")
    what = "print one JSON object per recording, with the time of each word"
    add("--json", action="store_const", const="jsonl", help=what)
    add = made.add_argument
    add("--out", type=Path, help="folder for transcripts (default: print them)")
    what = ("standard input is raw audio (16 bits, little-endian, mono, the run's sample rate); "
            "words are printed as soon as they are recognised")  # fmt: skip
    add("--raw", action="store_true", help=what)
    what = "length of a window (default: 20, but at most data.max_duration)"
    add("--window", type=above_zero, metavar="SECONDS", help=what)
    recognition_search_options(made)
    add("--beams", type=read_as(Beams), default=BEAMS, metavar="N", help="beam width")
    what = "print K transcripts per recording, with recording number and score"
    add("--n-best", type=int, metavar="K", help=what)
    add("--batch-size", type=at_least_one, default=8, help="windows per batch")
    made.set_defaults(kind="txt")
    return made


def recognition_search_options(made: Any) -> None:
    what = "greedy search, or modified beam search (at most one label per frame)"
    made.add_argument("--search", choices=("greedy", "modified"), default="greedy", help=what)
    what = "maximum number of labels per frame in greedy search"
    made.add_argument("--symbols-per-frame", type=read_as(Width), default=SYMBOLS_PER_FRAME,
                      metavar="N", help=what)  # fmt: skip


def search_of(args: argparse.Namespace, count: int = 1) -> Search:
    from magneto.speech.decoding import GreedySearch, ModifiedBeamSearch

    if args.search == "modified":
        if args.symbols_per_frame != SYMBOLS_PER_FRAME:
            raise ConfigError(["--symbols-per-frame has no effect with --search modified; omit it"])
        return ModifiedBeamSearch(width=args.beams, count=count)
    if args.beams != BEAMS:
        raise ConfigError(["--beams has no effect with --search greedy; add --search modified"])
    return GreedySearch(args.symbols_per_frame)


def main(words: Sequence[str]) -> int:
    made = parser()
    args, overrides = made.parse_with_overrides(words)
    check(made, args)
    run_task(args.run, overrides, "transcribe")
    search = search_of(args, args.n_best or 1)
    opened: Any = load_run(args.run, args.weights, overrides)
    data: SpeechDataConfig = opened.recipe.data
    window = args.window or min(WINDOW, data.max_duration)
    from magneto.speech.long_audio import Transcriber

    transcriber = Transcriber(
        opened.model, opened.task.vocabulary, data, search, window,
        1 if args.raw else args.batch_size,
    )  # fmt: skip
    piped = STDIN in args.files
    recordings: list[str | bytes] = [str(user_path(name)) for name in args.files]
    if piped and not args.raw:
        recordings = [recording_from_standard_input()]
    if not transcribe(transcriber, args, recordings):
        source = "standard input" if piped else f"{len(recordings)} recordings"
        raise ValueError(f"no sound in {source}")
    return 0


def check(made: Parser, args: argparse.Namespace) -> None:
    piped, several = STDIN in args.files, len(args.files) > 1
    if args.n_best is not None:
        if args.search == "greedy":
            made.error("--n-best needs --search modified")
        if not 1 <= args.n_best <= args.beams:
            made.error(f"--n-best must be 1 to --beams ({args.beams}), not {args.n_best}")
        if args.raw or args.kind == "srt":
            made.error("omit --raw and --srt with --n-best")
    if piped and several:
        made.error("standard input (-) must be the only recording")
    if piped and (sys.stdin is None or sys.stdin.isatty()):
        made.error("standard input must be a recording: ... | magneto transcribe RUN -")
    if args.raw and not piped:
        made.error("--raw needs standard input: arecord ... | magneto transcribe RUN - --raw")
    if sys.stdout is None and args.out is None:
        made.error("standard output is closed; give --out DIR")
    if args.kind == "srt" and several and args.out is None:
        made.error("--srt with several recordings needs --out DIR")
    for name in args.files:
        if name == STDIN:
            continue
        beside = check_file(name, "recording").with_suffix(".txt")  # may be the text to train on
        here = args.out is not None and args.out.resolve() == beside.parent.resolve()
        if here and args.kind == "txt" and beside.exists():
            made.error(f"--out would overwrite {beside}; name another folder")
    stems = [Path(name).stem for name in args.files]
    check_folder("--out", args.out)
    if args.out is not None and len(set(stems)) < len(stems):
        made.error("--out needs recordings whose names differ in more than the extension")


def recording_from_standard_input() -> bytes:
    source = open_standard_input()
    first = source.read(12)
    if not BEGINNINGS["Audio"].match(first):
        raise ConfigError(["standard input is not a .wav, .flac, .ogg or .mp3 recording; use --raw "
                           "for samples without a header"])  # fmt: skip
    return first + source.read()


def transcribe(
    transcriber: Transcriber, args: argparse.Namespace, recordings: Sequence[str | bytes]
) -> bool:
    progress, rate = ProgressBars(), transcriber.rate
    window = transcriber.size / rate
    headers = [] if args.raw else [header_seconds(recording) for recording in recordings]
    lengths = [seconds for seconds, _ in headers]

    def check_length(name: str, seconds: float) -> None:
        if args.n_best is not None and seconds > window:
            raise ValueError(f"--n-best: {name} is longer than a window of {window:g} s; raise "
                             "--window")  # fmt: skip

    for name, seconds in zip(args.files, lengths, strict=False):
        check_length(name, seconds)

    def samples(name: str, recording: str | bytes, problem: str) -> Iterator[np.ndarray]:
        problems = [problem] if problem else []
        yield from sound_pieces(recording, rate, problems.append)
        for each in dict.fromkeys(problems):
            progress.say(f"{name}: {each}")

    sounds = [raw_pieces(open_standard_input())] if args.raw else []
    sounds += [samples(name, recording, problem) for name, recording, (_, problem)
               in zip(args.files, recordings, headers, strict=False)]  # fmt: skip
    at_once = args.raw and args.out is None and args.kind != "srt"
    words: list[Word] = []
    has_sound = False
    for part in transcriber.transcribe(sounds):
        check_length(args.files[part.recording], part.seconds)
        has_sound = has_sound or part.seconds >= transcriber.least_seconds
        words += part.words
        if at_once and args.kind == "txt":
            text = "".join(f"{word.text} " for word in words)
            print(text, end="\n" if part.last else "", flush=True)
            words = []
        elif part.last or (at_once and words):
            write(args, part.recording, words, part.texts)
            words = []
        if headers:
            done = min(sum(lengths[: part.recording]) + part.seconds, sum(lengths))
            progress.update("transcribing seconds", round(done), round(sum(lengths)))
    progress.finish()
    return has_sound


def write(
    args: argparse.Namespace,
    number: int,
    words: Sequence[Word],
    hypotheses: Sequence[tuple[str, float]],
) -> None:
    name, text = args.files[number], " ".join(word.text for word in words)
    if args.kind == "srt":
        written = as_srt(words)
    elif args.kind == "jsonl":
        times = [asdict(word) | {"start": round(word.start, 3), "end": round(word.end, 3)}
                 for word in words]  # fmt: skip
        record: dict[str, Any] = {"file": name, "text": text, "words": times}
        if args.n_best is not None:
            record["transcripts"] = [{"text": t, "score": score} for t, score in hypotheses]
        written = json.dumps(plain(record), ensure_ascii=False) + "\n"
    elif args.n_best is not None:
        written = "".join(f"{number + 1}\t{score:.4f}\t{t}\n" for t, score in hypotheses)
    else:
        several = len(args.files) > 1 and args.out is None
        written = f"{name}\t{text}\n" if several else f"{text}\n"
    if args.out is None:
        print(written, end="", flush=True)
        return
    stem = "stdin" if name == STDIN else Path(name).stem
    write_text(args.out / f"{stem}.{args.kind}", written)


def as_srt(words: Sequence[Word]) -> str:
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
    whole, thousandths = divmod(round(seconds * 1000), 1000)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d},{thousandths:03d}"
