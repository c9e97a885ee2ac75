"""The `[data]` section of a configuration: where samples come from and how they become silos."""

import math
from dataclasses import field, fields
from typing import Annotated, Literal

from pydantic import Field, PlainValidator

from ..core import ConfigurationError
from ..core.settings import LARGE, MAX_COUNT, check_different, frozen_settings
from .pools import Kind
from .sources import HELP, SOURCES, parsed
from .tables.columns import Reading
from .tables.dictionary import Declared, DictionaryColumn, LabelCode, OwnColumn, check_declared

ImageChange = Literal["flip", "crop", "rotate", "erase", "brightness"]
"""How images can be changed at random as they are trained on."""


def _test_samples(value: object) -> object:
    # By hand: pydantic would say what is wrong with a value once for each alternative.
    if value == "all" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ValueError('must be a whole number of at least 1, or "all"')


TestSamples = Annotated[int | Literal["all"], PlainValidator(_test_samples)]
Share = Annotated[float, Field(gt=0, lt=1)]


@frozen_settings
class Shift:
    """What makes the inputs of silos differ. A list shorter than the silos gives each entry to a block of silos."""

    angles: tuple[Annotated[float, Field(ge=-3600, le=3600)], ...] = ()
    """Rotations in degrees, counter-clockwise; as many as there are silos, or a divisor of that number."""
    noise_std: tuple[Annotated[float, Field(ge=0, le=LARGE)], ...] = ()
    """Gaussian noise, added before rotation: on the 0..255 scale for images, in units of the feature for tables."""


@frozen_settings
class Partition:
    """What makes the labels of silos differ, for data that does not come in silos."""

    scheme: Literal["iid", "dirichlet", "classes", "draws"] = "iid"
    """iid: at random; dirichlet: each class in Dirichlet(alpha) shares; classes: per_silo classes at each silo;
    draws: per_silo draws of a class at each silo, of which two can be the same, each class split evenly over its draws
    (FedPN, arXiv 2312.11230)."""
    alpha: Annotated[float, Field(gt=0)] | None = None
    """dirichlet: concentration, lower is more unequal (0.5 by default)."""
    per_silo: Annotated[int, Field(ge=2)] | None = None
    """classes: how many classes each silo has (2 by default); draws: how many each silo draws (3 by default)."""
    minimum: Annotated[int, Field(ge=4)] | None = None
    """All but iid: samples, without the test split, that every silo gets at least (10 by default); shares that give
    one fewer are drawn anew."""

    def __post_init__(self) -> None:
        for name, owners in (
            ("alpha", ("dirichlet",)), ("per_silo", ("classes", "draws")),
            ("minimum", ("dirichlet", "classes", "draws")),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and self.scheme not in owners:
                raise ConfigurationError(
                    f"data.partition.{name} = {value} is ignored by partition {self.scheme!r}; "
                    f"it belongs to {' and '.join(map(repr, owners))}",
                    f"data.partition.{name}",
                )


@frozen_settings
class Split:
    """The four disjoint splits of a silo: shares of its samples."""

    train: Share = 0.8
    """Share to train on, of all samples that are not test samples."""
    validation: Share = 0.1
    """Fraction of the non-test samples used for validation (model selection)."""
    calibration: Share = 0.1
    """Share to calibrate uncertainties and thresholds on, of all samples that are not test samples."""
    test: Share = 0.2
    """Share of all samples to test on; used only where the source has no test part of its own."""

    def __post_init__(self) -> None:
        total = self.train + self.validation + self.calibration
        if not math.isclose(total, 1, abs_tol=1e-6):
            raise ConfigurationError(
                f"data.split: train + validation + calibration = {total:g}, expected 1", "data.split"
            )


@frozen_settings
class Normalize:
    """Images become (pixel / 255 - mean) / std, with constants that never come from test data."""

    mean: Annotated[tuple[Annotated[float, Field(ge=-LARGE, le=LARGE)], ...], Field(min_length=1)] = (0.5,)
    """Per channel, or one for all, on the 0..1 scale."""
    std: Annotated[tuple[Annotated[float, Field(ge=1e-6, le=LARGE)], ...], Field(min_length=1)] = (0.5,)
    """Per channel, or one for all, on the 0..1 scale."""


@frozen_settings
class OodSettings:
    """Test inputs that a silo does not know, to evaluate on beside its test split; nothing is trained on them."""

    local: Literal["none", "classes", "domains"] = "none"
    """What a silo does not know but others do: none; classes: test samples of other silos, of classes that its training
    split lacks; domains: test samples of the silos of other domains."""
    global_source: str = ""
    """What nobody knows: the test part of another source (all of it if it has none), written like data.source."""
    held_out_classes: tuple[str, ...] = ()
    """Names of classes that are taken from every silo; their test samples belong to what nobody knows."""
    per_silo: Annotated[int, Field(ge=1)] | None = None
    """Samples of a stream at a silo, fewer where there are not as many; by default as many as its test split has."""

    def __post_init__(self) -> None:
        check_different(self.held_out_classes, "data.ood.held_out_classes")
        if self.global_source:
            parsed(self.global_source, "ood.global_source")
        if self.per_silo is not None and self.local == "none" and not self.global_source and not self.held_out_classes:
            raise ConfigurationError(
                f"data.ood.per_silo = {self.per_silo} is ignored: no stream is asked for", "data.ood.per_silo"
            )


@frozen_settings
class DataSettings:
    """Where samples come from and how they become silos."""

    source: Annotated[str, Field(description=HELP)] = "digits"
    kind: Kind | None = None
    """npz, npy, on_site: what x holds: images (8 bits, N,H,W or N,H,W,C), features (N,D), tokens (ids from 0, N,T) or
    series (float, N,T,C). Unset, it is features where it has two dimensions, else images."""
    n_silos: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None = None
    """How many silos to make; by default one per entry of a shift, or per file. Data that comes in silos keeps them."""
    samples_per_silo: Annotated[int, Field(ge=3)] | None = None
    """Samples of a silo without its test split, on average where labels are skewed; by default all are shared out."""
    test_per_silo: TestSamples | None = None
    """Test samples of a silo, or "all": all there are, shared out evenly among the silos of a domain. By default a
    quarter of samples_per_silo, or all."""
    target: str | None = None
    """csv, on_site: the column to predict."""
    label_noise: tuple[Annotated[float, Field(ge=0, le=1)], ...] = ()
    """Shares of training labels that are wrong, drawn from the other classes: as many as there are silos, or a divisor
    of that number, so that each is that of a block of silos. Other splits have their true labels."""
    positive_class: str | None = None
    """The class, of two, that sensitivity, AUROC and other figures of classification are of (the second by default)."""
    silo_column: str | None = None
    """csv: the column that names the silo of a row; without it every file is a silo."""
    classes: tuple[str, ...] = field(default=(), repr=False)
    """csv, on_site: the names of the classes, in order; a label that is none of them is refused. By default they are
    the labels of all silos. A federation of tables needs them, in words: what each silo's codes mean says its
    silo.toml."""
    label_codes: tuple[LabelCode, ...] = field(default=(), repr=False)
    """csv: what labels of the files mean, CODE = "CLASS" in a section of its own."""
    dictionary: tuple[DictionaryColumn, ...] = field(default=(), repr=False)
    """csv, on_site: the data dictionary, a TOML file with a section for each column: type, unit, range, values,
    missing, outside. What it says is written here in place of the file's name; columns that it lacks are not read."""
    rename_columns: tuple[OwnColumn, ...] = field(default=(), repr=False)
    """csv: columns that are called or written otherwise in the files, OWN = "NAME", or left out, OWN = false, in a
    section of its own."""
    categorical: tuple[str, ...] = ()
    """csv, on_site: columns of numbers that are codes of categories, or of any text; columns with text are categories
    anyway, but refused if they look like names, or like numbers with a mistake among them."""
    numeric: tuple[str, ...] = ()
    """csv, on_site: columns that hold numbers and nothing else; other text in them is refused, however much there
    is."""
    decimal: Literal[".", ","] = "."
    """csv, on_site: the decimal mark of numbers."""
    separator: str | None = None
    """csv, on_site: the character between the values of a row; unset, the one of comma, semicolon and tab that the
    header has most of."""
    size: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Pixels of both sides that all images are resized to, those of streams too; unset, images must be of one size."""
    lazy: bool = False
    """images: read and decode a file whenever it is needed, instead of keeping the pixels of all of them in memory.
    csv, parquet files alone: keep rows in a file that is mapped into memory, below $CAVEAT_CACHE."""
    duplicates: Literal["together", "drawn"] = "together"
    """csv, on_site: rows of a silo's table that are the same, label included, are all in one split ("together"): of
    those they were drawn for, the first of test, calibration, validation, train. "drawn" leaves each where it was
    drawn."""
    exif_rotation: bool = True
    """images, on_site: turn images upright as their EXIF data say."""
    channels: Literal[1, 3] | None = None
    """1 makes all images grey, 3 coloured; unset, grey images become coloured if some are."""
    augment: tuple[ImageChange, ...] = ()
    """Random changes of images, drawn anew for every batch of training and made in this order: flip (left to right),
    crop (moved by up to 1/8), rotate (up to 15 degrees), erase (a rectangle), brightness (up to 0.2 of the range)."""
    standardize: Literal["none", "silo", "federation"] = "none"
    """series: every channel less its mean and over its standard deviation, over training samples and steps, without
    padded ones: silo: of the silo's own; federation: of all silos together. Tables are, each by the silo's own."""
    shift: Shift = field(default_factory=Shift)
    """What makes the inputs of silos differ."""
    partition: Partition = field(default_factory=Partition)
    """What makes the labels of silos differ."""
    split: Split = field(default_factory=Split)
    """Shares of train, validation, calibration and test."""
    normalize: Normalize = field(default_factory=Normalize)
    """Constants that images are normalised with."""
    ood: OodSettings = field(default_factory=OodSettings)
    """Test inputs that silos do not know."""

    def __post_init__(self) -> None:
        check_different(self.categorical, "data.categorical")
        check_declared(self.declared, self.categorical, self.numeric)
        if self.source == "on_site":
            self._check_silos()
        self._check_keys()
        if (self.partition.minimum or 0) > (self.samples_per_silo or math.inf):
            raise ConfigurationError(
                f"data.partition.minimum = {self.partition.minimum}, expected at most data.samples_per_silo = "
                f"{self.samples_per_silo}",
                "data.partition.minimum",
            )
        if any(self.label_noise) and self.ood.local == "classes":
            raise ConfigurationError(
                "data.label_noise: wrong labels hide which classes a silo does not know, on which "
                "data.ood.local = 'classes' depends",
                "data.label_noise",
            )
        self._check_table()

    @property
    def reading(self) -> Reading:
        """How tables are to be read."""
        return Reading.of(self)

    @property
    def declared(self) -> Declared:
        """What is declared of a table's columns and labels."""
        return Declared(self.classes, self.label_codes, self.rename_columns, self.dictionary)

    def _check_keys(self) -> None:
        """Raises ConfigurationError for a key that none of the sources reads."""
        sources = parsed(self.source) + (parsed(self.ood.global_source) if self.ood.global_source else ())
        for each in fields(self):
            value, owners = getattr(self, each.name), [kind for kind in SOURCES.values() if each.name in kind.keys]
            if not owners or value in (None, "", (), each.default) or any(each.name in part.keys for part in sources):
                continue
            shown = str(value).lower() if isinstance(value, bool) else repr(value)
            raise ConfigurationError(
                f"data.{each.name} = {shown} is ignored by source {self.source!r}; it belongs to "
                f"{' and '.join(kind.name for kind in owners)}",
                f"data.{each.name}",
            )

    def _check_table(self) -> None:
        """Raises ConfigurationError for keys of tables that contradict each other, and for a table without a target."""
        if self.source.startswith("csv:") and not self.target:
            raise ConfigurationError(
                f"data.target is missing: source {self.source!r} needs the column to predict", "data.target"
            )
        if both := sorted(set(self.numeric) & set(self.categorical)):
            raise ConfigurationError(
                f"data.numeric and data.categorical both have {both[0]!r}, expected it in one of them", "data.numeric"
            )
        if self.separator is not None and (len(self.separator) != 1 or self.separator in '"\r\n'):
            raise ConfigurationError(
                f'data.separator = {self.separator!r}: expected one character such as "," ";" or "\\t"',
                "data.separator",
            )

    def _check_silos(self) -> None:
        """Raises ConfigurationError for what needs the data of several silos, where no machine has these."""
        for name in ("label_codes", "rename_columns"):
            if getattr(self, name):
                raise ConfigurationError(
                    f"data.{name} is each silo's own: [data.{name}] of its silo.toml", f"data.{name}"
                )
        for key, value, default in (
            ("n_silos", self.n_silos, None),
            ("shift.angles", self.shift.angles, ()),
            ("shift.noise_std", self.shift.noise_std, ()),
            ("label_noise", self.label_noise, ()),
            *(
                (f"partition.{each.name}", getattr(self.partition, each.name), each.default)
                for each in fields(Partition)
            ),
            ("standardize", self.standardize if self.standardize == "federation" else "none", "none"),
            ("ood.local", self.ood.local, "none"),
            ("ood.held_out_classes", self.ood.held_out_classes, ()),
        ):
            if value != default:
                raise ConfigurationError(
                    f"data.{key} = {value!r} needs the data of all silos, but with data.source = 'on_site' every silo "
                    "reads its own",
                    f"data.{key}",
                )
