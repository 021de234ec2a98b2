"""Which endpoints share what measures them: the servers that they name, or the devices of this process."""

from __future__ import annotations

from dataclasses import dataclass

from shadowspec.config import Config


@dataclass(frozen=True, slots=True)
class MeasuringGroup:
    """Endpoints that wait for the same engines.

    An engine process runs on each of the devices.  Where servers measure (`roots`, sorted) it is one, which needs its
    device for audits of their outputs.
    """

    endpoints: tuple[str, ...]
    roots: tuple[str, ...]
    devices: tuple[str, ...]

    @property
    def num_engines(self) -> int:
        """Blocks that are measured at once."""
        return len(self.devices)

    @property
    def name(self) -> str:
        """As people know it: the servers without their scheme, or the devices ("device": the one that is there)."""
        names = [root.split("://")[-1] for root in self.roots] or self.devices
        return " + ".join("device" if name == "auto" else name for name in names)


def measuring_groups(config: Config) -> list[MeasuringGroup]:
    """That of endpoints without servers, if there are any, then each set of endpoints that share a server."""
    devices = config.worker.devices or (config.engine.device,)
    in_process = tuple(name for name, endpoint in config.endpoints.items() if endpoint.servers is None)
    served: list[tuple[set[str], tuple[str, ...]]] = []  # roots of servers, and the endpoints that name them
    for name, endpoint in config.endpoints.items():
        if endpoint.servers is not None:
            roots = {url.rstrip("/") for url in endpoint.servers.roots}
            names: tuple[str, ...] = (name,)
            for shared in [known for known in served if known[0] & roots]:
                served.remove(shared)
                roots, names = roots | shared[0], shared[1] + names
            served.append((roots, names))
    groups = [MeasuringGroup(in_process, (), devices)] if in_process else []
    for index, (roots, names) in enumerate(served):
        groups.append(MeasuringGroup(names, tuple(sorted(roots)), (devices[index % len(devices)],)))
    return groups
