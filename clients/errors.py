"""Exceptions of the client.

Classes:

    ClientError
    ├── ArgumentError (also a ValueError)
    │   ├── NonFiniteUpdateError  handed to an aggregation rule that proves nothing
    │   ├── UnknownNameError
    │   ├── DimensionError
    │   ├── ExtensionError        a class of the user's own
    │   │   └── ModelImportError
    │   ├── AdapterError          an adapter does not train, or something beside it would
    │   ├── ModelInputError
    │   ├── ModelDigestError      the model here is not the one that the task means
    │   ├── UnnamedModelError     the task does not say which code of the organisations' own it means
    │   ├── TrainerError          a foreign trainer does not start, or the task has no place for one
    │   ├── StateFileError        what counts uploads or payments cannot be read or written: nothing is uploaded
    │   └── DataError             a data set
    │       ├── MissingDataError  is not there; says what helps
    │       ├── CorruptDataError  is not what its authors published
    │       ├── TargetError       labels that the loss has no meaning for
    │       ├── OwnRecordsError   records of the client's own are not as they must be
    │       ├── RecordRangeError  a label or a token that the model has no place for
    │       └── NoGradientError   no record has a finite loss and gradient: there is nothing to learn from
    ├── RecordMixingLayerError
    ├── DropoutLayerError
    ├── UnsteadyModelError
    ├── LayerRowsError           one pass cannot take this batch; another path can
    ├── ModelRecordError         a user's model raised on what some record holds
    ├── NonFiniteModelError
    ├── NonFiniteGradientError
    ├── DivergedError            a simulated training has left the finite numbers
    ├── NoVictimError            an attack on others' updates in a round without any
    ├── ProtocolError            the servers say something that honest ones do not
    ├── QueryRefusedError        this client does not answer a query, or has no room for one more answer
    ├── UploadLimitError         the servers ask for the same model too often
    │   └── RestoredServersError both state another past than this client has seen
    ├── HolderLimitReachedError  one more upload would pass the limit of the holder's own ledger
    ├── TaskRefusedError         a server refuses this client
    ├── ServerUnreachableError   a server is gone
    │   ├── ServerBusyError      has no room now, and said when to come back
    │   └── TaskEndedError       it ended the task before its time, and said so, or ended it alone
    └── StoppedError             the operator stopped this process
"""


class ClientError(Exception):
    """Base of everything the client package raises on purpose."""


class ArgumentError(ClientError, ValueError):
    """An argument is outside the range its function is defined on."""


class UnknownNameError(ArgumentError):
    """A name from configuration (of a model, of a device) that nothing is registered under."""

    def __init__(self, kind: str, name: str, *, known: list[str]) -> None:
        super().__init__(f"unknown {kind} {name!r}, expected one of {', '.join(known)}")


class DimensionError(ArgumentError):
    """A flat vector does not have one entry per parameter of the model."""

    def __init__(self, *, expected: int, found: tuple[int, ...]) -> None:
        super().__init__(f"parameters: expected a flat vector of shape ({expected},), found {found}")


class DataError(ArgumentError):
    """Base of what goes wrong with the files of a data set. Line breaks and escape codes of names are escaped."""

    def __init__(self, message: str) -> None:
        super().__init__("".join(c if c.isprintable() else ascii(c)[1:-1] for c in message))


class MissingDataError(DataError):
    """A data set is not there; the message says what helps."""


class CorruptDataError(DataError):
    """A file is not the one that its authors published."""

    def __init__(self, path: object, why: str) -> None:
        super().__init__(f"{path}: {why}; the file is damaged or another one: get it again")


class OwnRecordsError(DataError):
    """Records of the client's own are not as they must be. The message names file, row and column, never a value."""

    def __init__(self, where: object, expected: str, found: str) -> None:
        super().__init__(f"{where}: expected {expected}, found {found}")


class StateFileError(ArgumentError):
    """The file in which a client counts its uploads cannot be read or written, or is damaged; nothing is uploaded."""


class RecordRangeError(DataError):
    """A record's label or token is outside the model's range. The message says nothing else of the record."""

    def __init__(self, field: str, row: int, what: str, n_known: int) -> None:
        super().__init__(f"{field}: expected {what} in [0, {n_known - 1}] in row {row}, found one outside")


class NoGradientError(DataError):
    """No record has a finite loss and gradient at the first model. The message says nothing else of any record."""

    def __init__(self, field: str, loss: str) -> None:
        super().__init__(
            f"{field}: expected a record whose loss and gradient are finite at the model's first parameters, found "
            f"none: the model or the loss {loss!r} gives NaN or infinity for every one"
        )


class TargetError(DataError):
    """Labels are not what the loss needs. The message names a field and a row, and says nothing of the record."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"{field}: labels: {why}")


class RecordMixingLayerError(ClientError):
    """A layer's output for one record depends on the other records, so one record has no gradient of its own."""

    def __init__(self, layer_name: str, layer_type: str, *, is_fixable: bool = False) -> None:
        hint = "; precad.fix(model) puts one in place" if is_fixable else ""
        super().__init__(
            f"layer {layer_name!r} ({layer_type}) mixes the records of a batch; "
            f"use a normalisation within one record, such as GroupNorm{hint}"
        )


class DropoutLayerError(ClientError):
    """A layer draws in training what it drops. It would be off here, and nobody would notice."""

    def __init__(self, layer_name: str, layer_type: str, probability: float) -> None:
        super().__init__(
            f"layer {layer_name!r} ({layer_type}) drops values with probability {probability:g}, drawn for a whole "
            "batch: a record's gradient must depend on the record alone, so nothing is dropped here; expected 0, which "
            "precad.fix(model) sets"
        )


class UnsteadyModelError(ClientError):
    """A model gives the same record other logits each time, or keeps a trace of it: it has no gradient of its own."""

    def __init__(self, model_type: str) -> None:
        super().__init__(
            f"model {model_type}: it draws or keeps what it has seen when it is evaluated; "
            "draw nothing, keep nothing between calls, and change no input in place"
        )


class LayerRowsError(ClientError):
    """A layer's input or output does not have one row for every record of the batch, or was overwritten later on."""

    def __init__(self, layer_type: str, why: str) -> None:
        super().__init__(f"a layer {layer_type} {why}")


class ModelRecordError(ClientError):
    """A user's model or loss raised on what some record holds. The message says nothing of the record."""

    def __init__(self, error: Exception, *, own_loss: str = "") -> None:
        """own_loss: the name of a loss of the user's own, which may have raised in the model's place."""
        who = f"task.model: the model, or the loss {own_loss!r}," if own_loss else "task.model: the model"
        super().__init__(f"{who} raised {type(error).__name__} on some record; expected numbers for any")


class ExtensionError(ArgumentError):
    """The class of the user's own that a configuration names cannot be imported, or is none of that kind."""

    def __init__(self, kind: str, path: str, why: str, *, expected: str = "package.module:Name") -> None:
        super().__init__(f"{kind} {path!r}: expected {expected}; {why}")


class ModelImportError(ExtensionError):
    """The model of the user's own that a configuration names cannot be imported, or is none."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__("model", path, why, expected="package.module:factory of a torch.nn.Module")


class TrainerError(ArgumentError):
    """The trainer that a configuration names does not start. The message has none of its own words."""

    def __init__(
        self, found: str, why: str, *, field: str = "client.trainer", expected: str = "a trainer that loads"
    ) -> None:
        super().__init__(f"{field}: expected {expected}, found {found!r}: {why}")


class ModelInputError(ArgumentError):
    """The model cannot be applied to records of the data set's shape, or gives something that is no logits."""

    def __init__(self, shape: tuple[int, ...], why: str) -> None:
        super().__init__(f"the model does not fit records of shape {shape}: {why}")


class AdapterError(ArgumentError):
    """Adapters, their base or their files are not as they must be. Names a layer, or a field."""

    def __init__(self, where: object, expected: str, found: str) -> None:
        super().__init__(f"{where}: {expected}, found {found}")


class ModelDigestError(ArgumentError):
    """The model that a name makes here is another one than the organisations agreed on."""

    def __init__(self, model: str, *, expected: str, found: str, has_constants: bool) -> None:
        """has_constants: whether the model has frozen parameters or buffers."""
        drawn = "; drawn constants differ between processors: load them from a file that all share"
        super().__init__(
            f"task.model_digest: expected {expected}, found {found} of {model!r} here; every organisation needs the "
            f"same code, of a loss of its own too, frozen parameters and shape of records{drawn * has_constants}"
        )


class UnnamedModelError(ArgumentError):
    """Organisations bring code of their own, and the task does not say by digest which."""

    def __init__(self, names: str, found: str) -> None:
        super().__init__(
            f"task.model_digest: expected the digest of {names}, which clients compare, found none; where the code is "
            f'the right one, every organisation sets model_digest = "{found}"'
        )


class NonFiniteModelError(ClientError):
    """The model that a client is given has parameters that are NaN or infinite, which everybody can see."""

    def __init__(self) -> None:
        super().__init__("the model's parameters are not all finite; has training diverged?")


class NonFiniteGradientError(ClientError):
    """Some records' gradients are NaN or infinite, where nothing clips them: their sum says nothing."""

    def __init__(self, *, n_bad: int, n_records: int) -> None:
        super().__init__(f"the gradients of {n_bad} of {n_records} records are not finite; has training diverged?")


class NonFiniteUpdateError(ArgumentError):
    """Updates of clients are not finite, and no mechanism takes them for zero."""

    def __init__(self, *, n_bad: int, n_updates: int) -> None:
        super().__init__(f"{n_bad} of {n_updates} updates are not finite")


class DivergedError(ClientError):
    """A simulated round cannot be computed, or gives no model, because numbers are no longer finite."""

    def __init__(self, t: int, why: str) -> None:
        super().__init__(f"the training diverged in round {t}: {why}")
        self.round = t


class NoVictimError(ClientError):
    """An attack made of the honest clients' updates meets a round without honest clients; its client stays silent."""

    def __init__(self, attack: str) -> None:
        super().__init__(f"attack {attack!r} needs an honest update in the round, and there is none")


class ProtocolError(ClientError):
    """A server said something that no honest server says; nothing is uploaded."""


class UploadLimitError(ClientError):
    """A client has uploaded for one model as often as it ever will; nothing more is uploaded for it."""

    def __init__(self, client: str, *, n_uploads: int, n_committed: int, most: int, file: object) -> None:
        kept = "" if file is None else f", counted in {file}"
        super().__init__(
            f"{client} stops: expected at most {most} uploads for one model (client.uploads_per_model), found "
            f"{n_uploads} after {n_committed} committed rounds{kept}, and the servers ask again. They lose rounds, or "
            "one of them deviates to learn more: ask both operators before you start this client again"
        )


class RestoredServersError(UploadLimitError):
    """Both servers state fewer committed rounds than this client has uploaded after, or another model after as many:
    charges of theirs may be gone."""

    def __init__(self, client: str, *, found: object, seen: int, file: object) -> None:
        kept = "" if file is None else f" (counted in {file})"
        ClientError.__init__(
            self,
            f"{client} stops: expected servers that hold the {seen} rounds after which it uploaded in this task{kept}, "
            f"found {found}: were both given back an old state_dir, or begun anew? Their epsilons are too small "
            "then: begin a task of another name, and add what this one cost",
        )


class HolderLimitReachedError(ClientError):
    """One more upload would pass the limit of the holder's own ledger; nothing more is uploaded."""

    def __init__(self, error: object, file: object) -> None:
        super().__init__(f"client.holder.limit_epsilon: {error} (counted in {file}; see `precad holder statement`)")


class QueryRefusedError(ClientError):
    """This client does not answer a query: no word of its operator's covers it, or its own limit would be passed."""


class TaskRefusedError(ClientError):
    """A server refused this client: another task, another identity, another protocol version."""


class ServerUnreachableError(ClientError):
    """A server cannot be reached, or hung up without a goodbye."""

    retry_after_s = 0.0
    """Seconds after which it may be asked again."""


class ServerBusyError(ServerUnreachableError):
    """A server takes no more now, and said when to ask again."""

    def __init__(self, reason: str, retry_after_s: float) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class TaskEndedError(ServerUnreachableError):
    """A server ended the task before it was finished, and said why; it may come back to it. Or it alone says that the
    task is finished, and the other one, which is here, does not."""


class StoppedError(ClientError):
    """This process was asked to stop."""
