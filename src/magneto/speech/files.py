"""Folders of recordings with transcripts: LibriSpeech's, Common Voice's, Kaldi's, manifests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from magneto.data.counts import Counts
from magneto.data.files import existing_path, has_ending, read_lines, unpacked_name, walk_files
from magneto.speech.audio import AudioFile
from magneto.speech.kaldi import kaldi_rows
from magneto.speech.manifests import ENDINGS, audio_beside, manifest_rows
from magneto.speech.utterances import Row

LIBRISPEECH = "*.trans.txt"
KALDI = "wav.scp"
CLIPS = "clips"
# Tables of Common Voice that list recordings with their sentences.
COMMON_VOICE = ("train", "dev", "test", "validated", "other", "invalidated")

Reader = Callable[[Path, Counts], Iterator[Row]]


class FileSpeech:
    """Recordings that files of transcripts name.

    Args:
        indices: Those files (Kaldi: folders), by the name of the split.
        read: From one of them to its utterances.
    """

    def __init__(self, indices: dict[str, list[Path]], read: Reader) -> None:
        self.indices, self.read = indices, read
        self.splits = list(indices)

    def rows(self, split: str, counts: Counts) -> list[Row]:
        """Return the utterances of a split; records that make none are counted."""
        return [row for path in self.indices[split] for row in self.read(path, counts)]


def open_files(source: str) -> FileSpeech:
    """Find out how a folder is laid out, or open a manifest.

    Raises:
        FileNotFoundError: If there is no such path; names the nearest.
        ValueError: If it is none of the layouts.
    """
    path = existing_path(source)
    if path.is_file():
        if not has_ending(path, ENDINGS):
            raise ValueError(f"{source} is no manifest: a file ends in {', '.join(ENDINGS)}")
        return FileSpeech({_stem(path): [path]}, manifest_rows)
    files = sorted(walk_files(path))
    if found := [file for file in files if file.name == KALDI]:
        folders = [file.parent for file in found if not _part_of_another(file.parent, found)]
        return FileSpeech({_relative(folder, path): [folder] for folder in folders}, kaldi_rows)
    if found := [file for file in files if file.match(LIBRISPEECH)]:
        return FileSpeech(_librispeech(path, found), librispeech_rows)
    if found := sorted({file.parent for file in files if file.parent.name == CLIPS} - {path}):
        return _common_voice(source, found)
    manifests = [file for file in files if file.parent == path and has_ending(file, ENDINGS)]
    if not manifests:
        raise ValueError(
            f"no transcripts in {source}: no {LIBRISPEECH} (LibriSpeech), {CLIPS}/ beside .tsv "
            f"(Common Voice), {KALDI} (Kaldi) or manifest ({', '.join(ENDINGS)})"
        )
    splits: dict[str, list[Path]] = {}
    for file in manifests:
        splits.setdefault(_stem(file), []).append(file)
    return FileSpeech(splits, manifest_rows)


def _part_of_another(folder: Path, tables: list[Path]) -> bool:
    """Return whether a data folder lies in another, as Kaldi's copies for its jobs (split8/1)."""
    return any(table.parent in folder.parents for table in tables)


def _stem(path: Path) -> str:
    return unpacked_name(path).rpartition(".")[0]


def _relative(folder: Path, root: Path) -> str:
    return "/".join(folder.relative_to(root).parts) or folder.resolve().name


def _librispeech(root: Path, files: list[Path]) -> dict[str, list[Path]]:
    """Return the files of transcripts by split: SPLIT/SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt."""
    splits: dict[str, list[Path]] = {}
    for file in files:
        above = file.relative_to(root).parts[:-3]
        splits.setdefault(above[-1] if above else root.resolve().name, []).append(file)
    return splits


def librispeech_rows(path: Path, counts: Counts) -> Iterator[Row]:
    """Yield the utterances of a chapter: lines of an id and what is said; ID.flac beside them.

    The speaker is the first part of the id.
    """
    there = audio_beside(path.parent)
    for line in read_lines(path, counts):
        id, _, text = line.strip().partition(" ")
        if id:
            place = there.get(id, path.parent / f"{id}.flac")
            yield Row(id, AudioFile(str(place)), text, id.partition("-")[0])


def _common_voice(source: str, clips: list[Path]) -> FileSpeech:
    if len(clips) > 1:
        raise ValueError(f"{source} has several languages: name one, such as {clips[0].parent}")
    folder = clips[0].parent
    tables = {name: folder / f"{name}.tsv" for name in COMMON_VOICE}
    there = {name: [table] for name, table in tables.items() if table.is_file()}
    if not there:
        raise ValueError(
            f"{folder} has {CLIPS}/ and no {', '.join(t.name for t in tables.values())}"
        )
    return FileSpeech(there, manifest_rows)
