"""What Ray's tasks, actors and placement groups ask for, and what the nodes have free."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rldbg.live.diagnosis.graph.wait_graph import WaitFacts
from rldbg.live.diagnosis.graph.wait_words import listed

_STRATEGIES = {"STRICT_SPREAD": "each bundle on a node of its own", "STRICT_PACK": "all bundles on one node"}


class RayResources:
    def __init__(self, ray: Mapping[str, Any]) -> None:
        self._ray = ray

    def lack_of(self, row: WaitFacts) -> str:
        """Why an actor or a task cannot be scheduled: no node has its labels, or what it asks for is not free there."""
        selector = dict(row.get("label_selector") or {})
        if (row.get("fallback_strategy") or {}).get("options"):
            selector = {}
        alive = [node for node in self._ray["nodes"] if node["alive"]]
        nodes = [node for node in alive if _is_selected(node.get("labels") or {}, selector)]
        if selector and not nodes:
            asked = ", ".join(f"{name}={rule}" for name, rule in selector.items())
            return f": it asks for a node labelled {asked}, and there is none{_known(alive, selector)}"
        return self.lack(row["required_resources"], row["placement_group_id"], nodes)

    def lack(self, wanted: Any, group: Any = None, nodes: Sequence[WaitFacts] | None = None) -> str:
        """What is asked for and what is free, on some nodes or on all."""
        groups = [each for each in self._ray["placement_groups"] if group and each["placement_group_id"] == group]
        if groups and groups[0]["state"] == "REMOVED":
            return f": its {group_label(groups[0])} was removed"
        if groups and groups[0]["state"] != "CREATED":
            return f": its placement group is {groups[0]['state'].lower()}{self.lack_of_group(groups[0])}"
        if groups:
            whole, own = _all_bundles(groups[0]), _of_group(wanted or {})
            using = self._users(list(whole), group) or ", and others use it"
            where = f"{group_label(groups[0])}, in which it belongs, has {_amounts(whole)} in all{using}"
            return f": it asks for {_amounts(own)}; {where}" if own else f": {where}"
        plain = {name: amount for name, amount in dict(wanted or {}).items() if "_group_" not in name}
        alive = [node for node in self._ray["nodes"] if node["alive"]] if nodes is None else nodes
        if not plain or any(
            all(node["free"].get(name, 0) >= amount for name, amount in plain.items()) for node in alive
        ):
            return ""
        asked = _amounts(plain)
        free = ", ".join(_of(name, _most(alive, "free", name), _most(alive, "total", name)) for name in plain)
        return f": it asks for {asked}; the node with the most has {free} free{self._users(self._scarce(plain))}"

    def _scarce(self, wanted: Mapping[str, float]) -> list[str]:
        """What no node has enough of."""
        alive = [node["free"] for node in self._ray["nodes"] if node["alive"]]
        return [name for name, amount in wanted.items() if all(free.get(name, 0) < amount for free in alive)]

    def _users(self, scarce: Sequence[str], group: Any = None) -> str:
        """The users of what is scarce in a placement group, or in the cluster: actors that live or are in their
        constructor, tasks that run and do not wait, and in the cluster placement groups, also unused ones."""
        constructors = [task for task in self._ray["tasks"] if task["type"] == "ACTOR_CREATION_TASK"]
        creating = {task["actor_id"] for task in constructors if task["state"].startswith("RUNNING")}
        actors = [a for a in self._ray["actors"] if a["state"] == "ALIVE" or a["actor_id"] in creating]
        tasks = [task for task in self._ray["tasks"] if task["state"] == "RUNNING" and task["type"] == "NORMAL_TASK"]
        using = Counter(
            (str(each["name"] or each.get("class_name")), _amounts(used))
            for each in (*actors, *tasks)
            # Those in a placement group have it from there.
            if (each["placement_group_id"] or None) == group
            if (used := _only(scarce, _of_group(each["required_resources"] or {})))
        )
        groups = [each for each in self._ray["placement_groups"] if each["state"] == "CREATED" and not group]
        using.update((group_label(g), _amounts(used)) for g in groups if (used := _only(scarce, _all_bundles(g))))
        words = [
            f"{name} ({count} times {amounts})" if count > 1 else f"{name} ({amounts})"
            for (name, amounts), count in using.most_common()
        ]
        return f"; in use by {listed(sorted(words))}" if using else ""

    def lack_of_group(self, group: WaitFacts) -> str:
        """Why a placement group cannot be placed: what no node has, or that its bundles fit only one by one."""
        if lack := self.lack(_bundles(group)):
            return lack
        alive = [node for node in self._ray["nodes"] if node["alive"]]
        whole, strategy = _all_bundles(group), str(group.get("strategy") or "")
        asked = f"its {len(group.get('bundles') or [])} bundles ask for {_amounts(whole)}"
        nodes = "1 node" if len(alive) == 1 else f"{len(alive)} nodes"
        wish = f"{strategy} wants {_STRATEGIES[strategy]}" if strategy in _STRATEGIES else ""
        if short := [name for name, amount in whole.items() if _sum(alive, "free", name) < amount]:
            free = [f"{_of(name, _sum(alive, 'free', name), _sum(alive, 'total', name))}" for name in short]
            return f": {asked}; the cluster has {', '.join(free)} free{self._users(short)}"
        if strategy == "STRICT_PACK" and (scarce := self._scarce(whole)):
            most = [_of(name, _most(alive, "free", name), _most(alive, "total", name)) for name in scarce]
            return f": {asked}; {wish}, and the node with the most has {', '.join(most)} free{self._users(scarce)}"
        if wish:
            return f": {asked}; {wish}, and the cluster has {nodes}"
        return f": {asked}, each fits on a node, but not all of them at once ({nodes})"


def _of_group(wanted: Mapping[str, float]) -> dict[str, float]:
    """What is asked for by its plain names: in a placement group Ray adds the group's to them, also twice."""
    plain = {name.partition("_group_")[0]: amount for name, amount in wanted.items()}
    return {name: amount for name, amount in plain.items() if name != "bundle"}


def _is_selected(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """By Ray's rules: `value`, `!value`, `in(a,b)` and `!in(a,b)`."""
    for name, rule in selector.items():
        wanted = rule.removeprefix("!")
        listed = wanted.startswith("in(") and wanted.endswith(")")
        choices = [each.strip() for each in wanted[3:-1].split(",")] if listed else [wanted]
        if (labels.get(name) in choices) == rule.startswith("!"):
            return False
    return True


def _known(nodes: Iterable[WaitFacts], selector: Mapping[str, str]) -> str:
    """The values that the labels in question have."""
    found = {
        f"{name}={node['labels'][name]}" for node in nodes for name in selector if name in (node.get("labels") or {})
    }
    return f" (there is {', '.join(sorted(found)[:8])})" if found else ""


def group_label(group: WaitFacts) -> str:
    return f"placement group {group['name'] or group['placement_group_id'][:8]}"


def _sum(nodes: Iterable[WaitFacts], what: str, name: str) -> float:
    return float(sum(node[what].get(name, 0) for node in nodes))


def _most(nodes: Iterable[WaitFacts], what: str, name: str) -> float:
    return max((float(node[what].get(name, 0)) for node in nodes), default=0.0)


def _of(name: str, free: float, total: float) -> str:
    return f"{_amount(name, free)} of {_amount(name, total)} {name}"


def _only(names: Sequence[str], resources: Mapping[str, float]) -> dict[str, float]:
    return {name: amount for name in names if (amount := resources.get(name))}


def _amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{_amount(name, amount)} {name}" for name, amount in resources.items())


def _amount(name: str, value: float) -> str:
    return f"{value / 2**30:.4g} GiB" if name.endswith("memory") else f"{value:g}"


def _all_bundles(group: WaitFacts) -> Mapping[str, float]:
    bundles = [each.get("unit_resources") or each for each in group.get("bundles") or [] if isinstance(each, dict)]
    return sum(map(Counter, bundles), Counter())


def _bundles(group: WaitFacts) -> dict[str, float]:
    """What the largest bundle of a placement group asks for."""
    bundles = group.get("bundles") or []
    wanted = [each.get("unit_resources") or each for each in bundles if isinstance(each, dict)]
    return max(wanted, key=lambda each: sum(v for v in each.values() if isinstance(v, int | float)), default={})
