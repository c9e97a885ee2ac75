"""The `[data]` section of a configuration: where samples come from and how they become silos."""

import math
from dataclasses import field, fields
from typing import Annotated, Literal

from pydantic import Field, PlainValidator

from ..core import ConfigurationError
from ..core.settings import LARGE, MAX_COUNT, check_different, frozen_settings
from .quantities import check_predict
from .raw_samples import Kind
from .sources import HELP, SOURCES, parsed
from .subgroups import Subgrouping
from .tables.declarations import (
    Decimal,
    Declared,
    DictionaryColumn,
    LabelCode,
    Marks,
    OwnColumn,
    OwnFile,
    Thousands,
    check_declared,
)
from .tables.reading_settings import Reading

ImageChange = Literal["flip", "crop", "rotate", "erase", "brightness"]
"""Random changes of training images."""


def _test_samples(value: object) -> object:
    # Checked by hand, because pydantic would report a wrong value once for each alternative.
    if value == "all" or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return value
    raise ValueError('must be a whole number of at least 1, or "all"')


TestSamples = Annotated[int | Literal["all"], PlainValidator(_test_samples)]
Share = Annotated[float, Field(gt=0, lt=1)]


@frozen_settings
class Shift:
    """Feature shift between silos. Each entry of a list with fewer entries than silos applies to a block of silos."""

    angles: tuple[Annotated[float, Field(ge=-3600, le=3600)], ...] = ()
    """Rotations in degrees, counter-clockwise; one per silo, or a divisor of the number of silos."""
    noise_std: tuple[Annotated[float, Field(ge=0, le=LARGE)], ...] = ()
    """Gaussian noise, added before rotation: on the 0..255 scale for images, in units of the feature for tables."""


@frozen_settings
class Partition:
    """Label skew between silos, for data that does not come in silos."""

    scheme: Literal["iid", "dirichlet", "pfllib", "classes", "draws"] = "iid"
    """iid: at random; dirichlet: each class in Dirichlet(alpha) shares; pfllib: the same, but a silo that has its even
    share of all samples gets no further class, as in PFLlib ("dir") and FL-bench; classes: per_silo classes at each
    silo; draws: per_silo draws of a class at each silo, with repetition, each class split evenly over its draws (FedPN,
    arXiv 2312.11230)."""
    alpha: Annotated[float, Field(gt=0)] | None = None
    """dirichlet, pfllib: concentration, lower is more unequal (0.5 by default; pfllib 0.1)."""
    per_silo: Annotated[int, Field(ge=1)] | None = None
    """classes: number of classes per silo (2 by default); draws: number of draws per silo (3 by default)."""
    silo_classes: tuple[tuple[str, ...], ...] = ()
    """classes: the classes of each silo, in order, such as [["0", "1"], ["2"]], instead of per_silo. Silos share the
    samples of a class evenly; classes that no silo has are removed."""
    minimum: Annotated[int, Field(ge=4)] | None = None
    """All except iid: minimum number of samples per silo, without the test split (10 by default); shares are redrawn
    until every silo has enough."""

    def __post_init__(self) -> None:
        for name, owners in (
            ("alpha", ("dirichlet", "pfllib")), ("per_silo", ("classes", "draws")),
            ("minimum", ("dirichlet", "pfllib", "classes", "draws")), ("silo_classes", ("classes",)),
        ):  # fmt: skip
            value = getattr(self, name)
            if value not in (None, ()) and self.scheme not in owners:
                raise ConfigurationError(
                    f"data.partition.{name} = {value} is not used by partition {self.scheme!r}; "
                    f"it belongs to {' and '.join(map(repr, owners))}",
                    f"data.partition.{name}",
                )
        for number, names in enumerate(self.silo_classes):
            check_different(names, f"data.partition.silo_classes[{number}]")
            if not names:
                raise ConfigurationError(
                    f"data.partition.silo_classes[{number}] is empty, expected a class", "data.partition.silo_classes"
                )
        if self.silo_classes and self.per_silo is not None:
            raise ConfigurationError(
                f"data.partition.per_silo = {self.per_silo} has no effect if silo_classes is set; remove one of them",
                "data.partition.per_silo",
            )


@frozen_settings
class Split:
    """Fractions of a silo's samples in its four disjoint splits."""

    train: Share | None = None
    """Fraction of the non-test samples used for training; by default all that are not used for validation and
    calibration."""
    validation: Share = 0.1
    """Fraction of the non-test samples used for validation (model selection)."""
    calibration: Share | None = None
    """Fraction of the non-test samples used to calibrate uncertainties and thresholds. By default a tenth, but at least
    20 samples, or 5/12 of the non-test samples of a silo with fewer than 48 (docs/reference/splits.md)."""
    test: Share = 0.2
    """Fraction of all samples used for testing, if the source has no test part."""

    def __post_init__(self) -> None:
        train, calibration = self.train or 0, self.calibration or 0
        total = train + self.validation + calibration
        if train and calibration and not math.isclose(total, 1, abs_tol=1e-6):
            raise ConfigurationError(
                f"data.split: train + validation + calibration = {total:g}, expected 1", "data.split"
            )
        if not (train and calibration) and total > 1 - 1e-6:
            given, other = ("train", "calibration") if train else ("calibration", "train")
            raise ConfigurationError(
                f"data.split: {given} + validation = {total:g}, which leaves no samples for {other}", "data.split"
            )

    def sizes(self, samples: int) -> tuple[int, int, int]:
        """Return the numbers of samples for train, validation and calibration, given the number of non-test samples.
        The number for training is below 1 if there are too few."""
        validation = max(1, round(samples * self.validation))
        share = self.calibration or (round(1 - self.validation - self.train, 9) if self.train else None)
        if share is None:
            calibration = max(round(samples * USUAL), min(ENOUGH, samples * 5 // 12))
        else:
            calibration = round(samples * share)
        calibration = max(1, calibration)
        return samples - validation - calibration, validation, calibration


USUAL = 0.1
"""Default share of the calibration split."""
ENOUGH = 20
"""Default number of calibration samples of a silo with 60 samples: an alarm at 5 % needs 19, and equal rows may move
one to the test split. 5/12 of the samples without the test split are a third of all."""


@frozen_settings
class Normalize:
    """Normalization of images: (pixel / 255 - mean) / std, with constants that never come from test data."""

    mean: Annotated[tuple[Annotated[float, Field(ge=-LARGE, le=LARGE)], ...], Field(min_length=1)] = (0.5,)
    """One mean per channel, or one for all channels, on the 0..1 scale."""
    std: Annotated[tuple[Annotated[float, Field(ge=1e-6, le=LARGE)], ...], Field(min_length=1)] = (0.5,)
    """One standard deviation per channel, or one for all channels, on the 0..1 scale."""


@frozen_settings
class OodSettings:
    """Out-of-distribution test inputs, evaluated in addition to the test split and never used for training."""

    local: Literal["none", "classes", "domains"] = "none"
    """Inputs that only other silos know: none; classes: their test samples of classes that the silo's training split
    lacks; domains: test samples of silos of other domains."""
    global_source: str = ""
    """Inputs that no silo knows: the test part of another source, or all of it; written like data.source."""
    held_out_classes: tuple[str, ...] = ()
    """Classes to remove from every silo; their test samples become inputs that no silo knows."""
    per_silo: Annotated[int, Field(ge=1)] | None = None
    """Maximum number of samples per stream and silo; by default the size of the silo's test split."""

    def __post_init__(self) -> None:
        check_different(self.held_out_classes, "data.ood.held_out_classes")
        if self.global_source:
            parsed(self.global_source, "ood.global_source")
        if self.per_silo is not None and self.local == "none" and not self.global_source and not self.held_out_classes:
            raise ConfigurationError(
                f"data.ood.per_silo = {self.per_silo} has no effect: no out-of-distribution inputs are configured",
                "data.ood.per_silo",
            )


@frozen_settings
class DataSettings:
    """Where samples come from and how they become silos."""

    source: Annotated[str, Field(description=HELP)] = "digits"
    kind: Kind | None = None
    """npz, npy, on_site: the kind of x: images (8 bits, N,H,W or N,H,W,C), features (N,D), tokens (ids from 0, N,T) or
    series (float, N,T,C). By default features if x has two dimensions, else images."""
    n_silos: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None = None
    """Number of silos to make, by default one per shift entry or file; not for data that already have silos."""
    samples_per_silo: Annotated[int, Field(ge=3)] | None = None
    """Samples per silo without its test split, on average with label skew; by default all samples are used."""
    test_per_silo: TestSamples | None = None
    """Test samples per silo, or "all": split all of them evenly among the silos of a domain. By default a quarter of
    samples_per_silo, or all."""
    target: str | None = None
    """csv, on_site: the column with the labels to predict."""
    predict: Literal["classes", "quantity", "time"] | None = None
    """csv, npz, npy: classes (the default, refused for more than 20 different numbers in a table), quantity, a number
    whose distribution is predicted, or time, the time to an event that may not have happened yet."""
    event: str | None = None
    """time: the column or array with 1 if the event happened at the target's time, 0 if that is the last time known."""
    horizons: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = ()
    """time: times, such as [365, 1825], at which predictions have a risk, the probability of the event until then."""
    range: tuple[float, float] | None = None
    """quantity, time: lowest and highest value, such as [0, 120]; [privacy] needs it. By default from silos' sums."""
    standardize_target: Literal["none", "silo"] = "none"
    """quantity: "silo" learns deviations from a silo's mean in standard deviations (also the unit of data.range)."""
    label_noise: tuple[Annotated[float, Field(ge=0, le=1)], ...] = ()
    """Label noise: fraction of wrong training labels, drawn from the other classes. One entry per silo, or per block of
    silos. Other splits keep their true labels."""
    positive_class: str | None = None
    """The positive class of two, for sensitivity, AUROC and other metrics (the second class by default)."""
    silo_column: str | None = None
    """csv: the column with the silo of each row; by default every file is a silo."""
    groups: str | None = None
    """The group of each sample, such as its patient. csv: a column, which is not an input; npz, npy: an array; images:
    a regular expression with one group in parentheses, matched in file names, "^(p[0-9]+)_". Splits are drawn by group,
    sizes count groups, and one random sample of each group is calibrated and tested on (docs/reference/splits.md)."""
    time: str | None = None
    """csv: the column, npz, npy: the array with the time of each sample, a date (2024-03-31) or a number; not an input.
    The splits train, validation, calibration and test follow in time. A group has the time of its last sample."""
    subgroups: str | None = None
    """csv, on_site: the column with the subgroup of each row, such as sex: each subgroup has its own guarantee,
    prediction sets and alarms (uncertainty.by_subgroup). Rows without a value use the guarantees of all rows."""
    subgroup_values: tuple[str, ...] = ()
    """subgroups: values of the column that are subgroups, in order; by default all. on_site needs these or edges."""
    subgroup_edges: tuple[float, ...] = ()
    """subgroups: bins of a column of numbers, [50, 65] for below 50, from 50 to below 65, and from 65 on."""
    subgroup_quantiles: Annotated[int, Field(ge=2, le=20)] | None = None
    """subgroups: number of bins of a column of numbers, with about equally many training rows of all silos."""
    subgroup_input: bool = True
    """subgroups: whether the column is also an input of the model."""
    classes: tuple[str, ...] = field(default=(), repr=False)
    """csv, on_site: class names, in order; other labels are refused. By default the labels of all silos. A federation
    of tables needs them as words; each silo.toml maps the silo's label codes to them."""
    label_codes: tuple[LabelCode, ...] = field(default=(), repr=False)
    """csv: section that maps the files' labels to classes, CODE = "CLASS"."""
    dictionary: tuple[DictionaryColumn, ...] = field(default=(), repr=False)
    """csv, on_site: the data dictionary, a TOML file with a section for each column: type, unit, range, values,
    missing, outside. Its content replaces the file's name here; columns that it lacks are not read."""
    rename_columns: tuple[OwnColumn, ...] = field(default=(), repr=False)
    """csv: section that renames columns of the files, OWN = "NAME", or removes them, OWN = false."""
    categorical: tuple[str, ...] = ()
    """csv, on_site: columns whose numbers are category codes, or that contain arbitrary text. Other text columns are
    categories, too, but are refused if they look like names, or like numbers with a typing error."""
    numeric: tuple[str, ...] = ()
    """csv, on_site: columns that contain only numbers; any other text in them is refused."""
    decimal: Decimal = "."
    """csv, on_site: the decimal mark of numbers."""
    thousands: Thousands | None = None
    """csv, on_site: the thousands mark of numbers; a space stands for all kinds of spaces."""
    missing: Marks = ()
    """csv, on_site: texts and numbers that mean missing in columns of features, in addition to an empty cell, ?, NA,
    nan, null and none."""
    separator: str | None = None
    """csv, on_site: the character between values; by default the most frequent of comma, semicolon, tab and | in the
    header."""
    files: tuple[OwnFile, ...] = field(default=(), repr=False)
    """csv: section for each file that has another format, [data.files.NAME] with its name without suffix: decimal,
    thousands, separator, missing, label_codes, rename_columns."""
    size: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Height and width in pixels to which all images are resized; by default all images must have the same size."""
    lazy: bool = False
    """images: decode files when needed instead of keeping all pixels in memory. csv, parquet files only: keep rows in a
    memory-mapped file below $CAVEAT_CACHE."""
    duplicates: Literal["together", "drawn"] = "together"
    """csv, on_site: "together" puts equal rows of a silo's table, label included, into one split: the first of test,
    calibration, validation and train for which one of them was drawn. "drawn" leaves each row where it was drawn."""
    exif_rotation: bool = True
    """images, on_site: rotate images according to their EXIF orientation."""
    channels: Literal[1, 3] | None = None
    """1 converts all images to grayscale, 3 to color; by default to color if some images have color."""
    augment: tuple[ImageChange, ...] = ()
    """Random augmentations of training images, applied in the order of the list and redrawn for every batch: flip (left
    to right), crop (translation by up to 1/8), rotate (up to 15 degrees), erase (a rectangle), brightness (up to 0.2 of
    the range)."""
    standardize: Literal["none", "silo", "federation"] = "none"
    """series: standardize every channel by the mean and standard deviation of the training steps, without padding, of
    each silo (silo) or of all silos together (federation). Tables are always standardized per silo."""
    shift: Shift = field(default_factory=Shift)
    """Feature shift between silos."""
    partition: Partition = field(default_factory=Partition)
    """Label skew between silos."""
    split: Split = field(default_factory=Split)
    """Fractions of train, validation, calibration and test."""
    normalize: Normalize = field(default_factory=Normalize)
    """Normalization constants of images."""
    ood: OodSettings = field(default_factory=OodSettings)
    """Out-of-distribution test inputs."""

    def __post_init__(self) -> None:
        check_different(self.categorical, "data.categorical")
        check_declared(self.declared, self.categorical, self.numeric)
        if self.source == "on_site":
            self._check_silos()
        self._check_keys()
        check_predict(self)
        if (self.partition.minimum or 0) > (self.samples_per_silo or math.inf):
            raise ConfigurationError(
                f"data.partition.minimum = {self.partition.minimum}, expected at most data.samples_per_silo = "
                f"{self.samples_per_silo}",
                "data.partition.minimum",
            )
        if any(self.label_noise) and self.ood.local == "classes":
            raise ConfigurationError(
                "data.label_noise hides which classes a silo lacks, and data.ood.local = 'classes' needs these "
                "classes: remove one of the keys",
                "data.label_noise",
            )
        self._check_table()
        self._check_subgroups()

    @property
    def subgrouping(self) -> Subgrouping | None:
        """The assignment of samples to subgroups; None without subgroups."""
        if self.subgroups is None:
            return None
        return Subgrouping(self.subgroups, self.subgroup_values, self.subgroup_edges, self.subgroup_quantiles)

    def _check_subgroups(self) -> None:
        """Raise ConfigurationError for keys of subgroups that contradict each other or have no effect."""
        given = [key for key in ("values", "edges", "quantiles") if getattr(self, f"subgroup_{key}")]
        if given and self.subgroups is None:
            raise ConfigurationError(
                f"data.subgroup_{given[0]} = {getattr(self, f'subgroup_{given[0]}')!r} has no effect without "
                "data.subgroups, which names the column",
                f"data.subgroup_{given[0]}",
            )
        if self.subgrouping is not None and self.source == "on_site" and given not in (["values"], ["edges"]):
            raise ConfigurationError(
                f"data.subgroups = {self.subgroups!r} needs data.subgroup_values or data.subgroup_edges with "
                "data.source = 'on_site', so that no value of a row leaves its silo",
                "data.subgroups",
            )

    @property
    def reading(self) -> Reading:
        """The settings for reading tables."""
        return Reading.of(self)

    @property
    def declared(self) -> Declared:
        """Declarations of a table's columns and labels."""
        columns = self.rename_columns, self.dictionary
        return Declared(self.classes, self.label_codes, *columns, self.thousands, self.missing, self.files)

    def _check_keys(self) -> None:
        """Raise ConfigurationError for a key that none of the sources reads."""
        sources = parsed(self.source) + (parsed(self.ood.global_source) if self.ood.global_source else ())
        for each in fields(self):
            value, owners = getattr(self, each.name), [kind for kind in SOURCES.values() if each.name in kind.keys]
            if not owners or value in (None, "", (), each.default) or any(each.name in part.keys for part in sources):
                continue
            shown = str(value).lower() if isinstance(value, bool) else repr(value)
            raise ConfigurationError(
                f"data.{each.name} = {shown} is not used by source {self.source!r}; it belongs to "
                f"{' and '.join(kind.name for kind in owners)}",
                f"data.{each.name}",
            )

    def _check_table(self) -> None:
        """Raise ConfigurationError for contradictory keys of tables, and for a table without a target."""
        if self.source.startswith("csv:") and not self.target:
            raise ConfigurationError(
                f"data.target is missing: source {self.source!r} needs the column to predict (--target COLUMN)",
                "data.target",
            )
        if both := sorted(set(self.numeric) & set(self.categorical)):
            text = f"data.numeric and data.categorical both have {both[0]!r}, expected it in one of them"
            raise ConfigurationError(text, "data.numeric")
        if self.thousands == self.decimal:
            text = f"data.thousands = {self.thousands!r} is also the decimal mark; set data.decimal to another mark"
            raise ConfigurationError(text, "data.thousands")
        if self.separator is not None and (len(self.separator) != 1 or self.separator in '"\r\n'):
            text = f'data.separator = {self.separator!r}: expected one character such as "," ";" or "\\t"'
            raise ConfigurationError(text, "data.separator")

    def _check_silos(self) -> None:
        """Raise ConfigurationError for keys that need the data of several silos on one machine."""
        for name in ("label_codes", "rename_columns"):
            if getattr(self, name):
                text = f"data.{name} differs between silos: set [data.{name}] in each silo.toml"
                raise ConfigurationError(text, f"data.{name}")
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
                text = "needs the data of all silos, but with data.source = 'on_site' each silo reads its own data"
                raise ConfigurationError(f"data.{key} = {value!r} {text}", f"data.{key}")
