"""The expressions of tools/dashboards/perdure.json, for every run."""
import json
import re


def expressions(path):
    with open(path, encoding="utf-8") as f:
        dashboard = json.load(f)
    found = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    found += [annotation["expr"] for annotation in dashboard["annotations"]["list"]]
    return [expression.replace("$run", ".*") for expression in found]


def names(path):
    """Of metrics, in all of them."""
    return set(re.findall(r"\bperdure_\w+", " ".join(expressions(path))))
