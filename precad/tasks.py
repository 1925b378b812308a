"""A task as an argument of the front door."""

from __future__ import annotations

from typing import Any


class Task(dict[str, Any]):
    """The fields of a `[task]` section, by name, as `precad.simulate` and `precad.run` take them.

    They are validated together, where they are used. The dimension and the clients may come from there. The samples in
    `deploy/hosts` say what each means.

    Raises: ConfigError for a name that no task has.

        >>> task = precad.Task(
        ...     name="patients", rounds=10, client_rate=1.0, record_rate=0.2, record_clip=1.0, client_clip=8.0,
        ...     noise_multiplier=2.0, learning_rate=0.5, gate="native",
        ... )
        >>> task["rounds"]
        10
    """

    def __init__(self, **fields: Any) -> None:
        from precad.deploy.errors import ConfigError
        from precad.deploy.shown.found import found_shown
        from precad.protos.task.target import TARGET
        from precad.protos.task.task import Task as Valid

        if unknown := sorted(fields.keys() - Valid.model_fields.keys() - {TARGET}):
            told = (f"task.{name}: expected no such key, found {found_shown(fields[name], name)}" for name in unknown)
            raise ConfigError("\n".join(told))
        super().__init__(fields)

    def __or__(self, other: Any) -> Task:  # type: ignore[override]  # other names than a task's are refused
        """Return a task with the other's fields over these: a plain mapping would be read as sections."""
        return Task(**{**self, **other})
