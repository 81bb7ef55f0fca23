"""The dataset manifest: from deliveries to one training-ready dataset."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from stack.manifests.base import Strict


def expand_episodes(value: Any) -> Any:
    """`[3, "7-9"]` -> `(3, 7, 8, 9)`; the same syntax as `--episodes 3,7-9`."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        return value
    episodes: list[int] = []
    for item in items:
        if isinstance(item, bool):
            raise ValueError("episodes are numbers or ranges such as '7-9'")
        if isinstance(item, int):
            episodes.append(item)
            continue
        first, dash, last = str(item).strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise ValueError(f"'{item}' is neither an episode number nor a range such as '7-9'")
        if dash and int(last) < int(first):
            raise ValueError(f"the range '{item}' runs backwards")
        episodes.extend(range(int(first), int(last or first) + 1))
    doubled = sorted({e for e in episodes if episodes.count(e) > 1})
    if doubled:
        raise ValueError(f"episodes named twice: {doubled}")
    return tuple(episodes)


class OfTasks(Strict):
    """Episodes with a frame of one of these tasks, by text as written."""

    tasks: tuple[str, ...] = Field(min_length=1)


def expand_split(value: Any) -> Any:
    """One part of `split`: a fraction, `rest`, tasks, or episodes as in `expand_episodes`."""
    if isinstance(value, bool):
        raise ValueError("a part is a fraction such as 0.9, a list of episodes, or 'rest'")
    if value == "rest" or isinstance(value, (float, dict, OfTasks)):
        return value
    if isinstance(value, int):
        raise ValueError(
            f"{value} is ambiguous: write {float(value)} for a fraction, [{value}] for an episode"
        )
    return expand_episodes(value)


NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
Episodes = Annotated[tuple[int, ...], BeforeValidator(expand_episodes)]
Part = Annotated[float | Literal["rest"] | tuple[int, ...] | OfTasks, BeforeValidator(expand_split)]
Dtype = Literal["float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "bool"]


class Decisions(Strict):
    """Answers to questions that a delivery raises; without an answer `prepare` refuses and asks.

    Attributes:
        timestamps: `restamp` replaces timestamps that are not frame_index / fps by just that, for
            recordings whose videos hold exactly one frame a row.
        missing_cameras: `drop` leaves out cameras that info.json declares and no file holds.
    """

    timestamps: Literal["refuse", "restamp"] = "refuse"
    missing_cameras: Literal["refuse", "drop"] = "refuse"


class Source(Strict):
    """One delivery.

    Attributes:
        path: the dataset's folder, relative to the manifest.
        name: what provenance and messages call it; the folder's name if not given.
        exclude_episodes: source episode indices that are left out.
        keep_episodes: if given, only these are taken.
        keep_tasks: if given, only episodes with a frame of one of these tasks, by text as delivered.
        exclude_tasks: episodes with a frame of one of these tasks are left out.
        rename: feature or camera of this delivery -> what the rest of the manifest calls it.
    """

    path: str
    name: str | None = None
    exclude_episodes: Episodes = ()
    keep_episodes: Episodes | None = None
    keep_tasks: tuple[str, ...] | None = Field(default=None, min_length=1)
    exclude_tasks: tuple[str, ...] = ()
    rename: dict[str, str] = Field(default_factory=dict)
    decide: Decisions = Decisions()

    @model_validator(mode="after")
    def _names_stay_apart(self) -> Source:
        names = [*self.rename.values()]
        if both := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"rename: two features would be called '{both[0]}'")
        return self


class Slice(Strict):
    """A run of channels of a source feature: by field table, by position, by channel names, or all.

    Attributes:
        source: the source feature (`from` in YAML).
        field: a field of the feature's own field table, such as `joint/position`.
        at: half-open positions `[start, stop]` in the source vector; with `field`, where the field must be.
        names: with `at`, the names that the channels get; alone, the channels to take by name.
    """

    source: str = Field(alias="from")
    field: str | None = None
    at: tuple[int, int] | None = None
    names: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _one_address(self) -> Slice:
        if self.field is not None and self.names is not None:
            raise ValueError("a slice is addressed by 'field' or by 'names', not by both")
        if self.names is not None and not self.names:
            raise ValueError("'names' is empty, so there is no channel to take; leave it out to take all")
        if self.at is not None:
            start, stop = self.at
            if not 0 <= start < stop:
                raise ValueError(
                    f"'at' is a half-open range [start, stop]; {[start, stop]} is empty or negative"
                )
            if self.names is not None and len(self.names) != stop - start:
                raise ValueError(
                    f"'at' takes {stop - start} channels but 'names' has {len(self.names)} names"
                )
        return self


class Camera(Strict):
    """A camera of the prepared dataset.

    Attributes:
        source: its name in the deliveries where it is renamed (`from` in YAML).
        when_missing: what to do where a source or an episode has no video of it: `refuse` (and ask), `drop`
            the camera from the prepared dataset, or fill with `black` pictures.
    """

    source: str | None = Field(default=None, alias="from")
    when_missing: Literal["refuse", "drop", "black"] = "refuse"


class Transcode(Strict):
    """How `videos: transcode` encodes pictures anew: small, and quick to reach in any order.

    Attributes:
        size: side of the square in pixels; pictures keep their shape and are padded with black, by the
            policy's own rule. 224 is what pi0.5 takes.
        gop: frames from one key frame to the next; 2 makes any frame at most one decoding step away.
        codec: what the pictures are encoded with.
        crf: the encoder's quality, 0 (best) to 51.
    """

    size: int = Field(default=224, ge=16, le=4096, multiple_of=2)
    gop: int = Field(default=2, ge=1, le=1000)
    codec: Literal["h264", "hevc", "av1"] = "h264"
    crf: int = Field(default=18, ge=0, le=51)


class FileCaps(Strict):
    """Sizes at which a new file begins, as lerobot's own keys in info.json; v2.1 has one file an episode.

    Attributes:
        data_mb, video_mb: of rows (uncompressed) and of videos, in units of 2**20 bytes.
        files_per_chunk: files in one chunk folder.
    """

    data_mb: float = Field(default=100, gt=0)
    video_mb: float = Field(default=200, gt=0)
    files_per_chunk: int = Field(default=1000, ge=1)


class ExpectedData(Strict):
    """Counts that must hold exactly.

    Attributes:
        widths: feature name -> number of channels.
    """

    episodes: int | None = None
    frames: int | None = None
    fps: float | None = None
    cameras: int | None = None
    widths: dict[str, int] = Field(default_factory=dict)


class DatasetManifest(Strict):
    """See docs/manifests.md.

    Attributes:
        features: vector features to keep, each a list of slices that are joined in order. Not given: every
            feature that all sources share. Index columns are always there.
        cameras: cameras to keep. Not given: every camera that all sources share.
        cast: feature -> dtype to write. Not given: vectors of floats are float32, the rest stays. A value
            that the dtype cannot hold is refused.
        tasks: task text as delivered -> task text to write.
        split: name -> fraction, list of episodes of the prepared dataset, `{tasks: [...]}`, or `rest`; each
            becomes a dataset of its own, in a folder of that name.
        robot_type: settles sources that disagree.
        version: the format to write; openpi reads nothing newer than v2.1.
        camera_statistics: `stored` keeps a clip's statistics where its source has sound ones that a few
            decoded pictures agree with, and samples the others; `sampled` decodes and samples all.
        transcode: how pictures are encoded where `videos: transcode` is chosen.
        caps: how large the files written become.
    """

    schema_: Literal["stack/dataset/1"] = Field(alias="schema")
    name: str = Field(pattern=NAME)
    sources: tuple[Source, ...] = Field(min_length=1)
    features: dict[str, tuple[Slice, ...]] | None = None
    cameras: dict[str, Camera] | None = None
    cast: dict[str, Dtype] = Field(default_factory=dict)
    tasks: dict[str, str] = Field(default_factory=dict)
    split: dict[Annotated[str, Field(pattern=NAME)], Part] | None = Field(default=None, min_length=2)
    robot_type: str | None = None
    version: Literal["v3.0", "v2.1"] = "v3.0"
    videos: Literal["join", "link", "transcode"] = "join"
    camera_statistics: Literal["stored", "sampled"] = "stored"
    transcode: Transcode = Transcode()
    caps: FileCaps = FileCaps()
    expect: ExpectedData = ExpectedData()

    @model_validator(mode="after")
    def _names_fit(self) -> DatasetManifest:
        for feature, slices in (self.features or {}).items():
            if not slices:
                raise ValueError(f"features.{feature} has no slice; leave the feature out to drop it")
        renamed = (name for source in self.sources for name in source.rename.values())
        for name in (*(self.features or {}), *(self.cameras or {}), *renamed):
            if "/" in name:
                raise ValueError(f"feature names must not contain '/': {name}")
            if name in ("", ".", "..") or not name.isprintable():
                raise ValueError(f"{name!r} is no name for a feature or camera")
        if empty := [text for text, written in self.tasks.items() if not written.strip()]:
            raise ValueError(
                f"tasks: '{empty[0]}' would become an empty text, which tells the policy nothing"
            )
        if both := sorted({*(self.features or {})} & {*(self.cameras or {})}):
            raise ValueError(f"'{both[0]}' stands under features and under cameras; one would hide the other")
        return self

    @model_validator(mode="after")
    def _split_adds_up(self) -> DatasetManifest:
        parts = dict(self.split or {})
        if sum(part == "rest" for part in parts.values()) > 1:
            raise ValueError("only one part of 'split' can be the rest")
        fractions = {name: part for name, part in parts.items() if isinstance(part, float)}
        if wrong := [name for name, part in fractions.items() if not 0 < part < 1]:
            raise ValueError(f"split.{wrong[0]}: a fraction lies between 0 and 1, not {parts[wrong[0]]}")
        if sum(fractions.values()) > 1 + 1e-9:
            raise ValueError(f"the fractions of 'split' add up to {sum(fractions.values()):g}, more than 1")
        listed = [episode for part in parts.values() if isinstance(part, tuple) for episode in part]
        if fractions and any(isinstance(part, (tuple, OfTasks)) for part in parts.values()):
            raise ValueError("'split' is by fractions, or by episodes and tasks, not by both")
        if doubled := sorted({episode for episode in listed if listed.count(episode) > 1}):
            raise ValueError(f"episodes in two parts of 'split': {doubled}")
        return self
