"""An energy statement as bills of materials have it: SPDX 3.0.1 (its AI profile) and CycloneDX 1.6. Pure.

Both have a place for one number. The interval, the method and the boundary stay beside it: in SPDX as an annotation
that holds the statement itself, in CycloneDX as properties.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from zeus_core.errors import UsageError

_GRAMS_PER_TONNE = 1e6


def spdx_text(stated: Mapping[str, Any]) -> str:
    """Return an `ai_AIPackage` with its energy, in JSON-LD; to be merged into the package of a bill of materials.

    Args:
        stated: The fields of the statement in JSON.

    Raises:
        UsageError: The energy is not known.
    """
    identity, agent = (f"urn:uuid:{_uuid(stated, part)}" for part in ("model", "tool"))
    element, end = {"creationInfo": "_:creation"}, stated["end"]
    kind = "finetuning" if stated["training_type"] == "fine-tuning" else "training"
    quantity = {
        "type": "ai_EnergyConsumptionDescription",
        "ai_energyQuantity": format(Decimal(str(_kilowatt_hours(stated)["value"])), "f"),
        "ai_energyUnit": "kilowattHour",
    }
    package = {
        "type": "ai_AIPackage",
        "spdxId": identity,
        **element,
        "name": _name(stated),
        "ai_energyConsumption": {"type": "ai_EnergyConsumption", f"ai_{kind}EnergyConsumption": [quantity]},
        "ai_informationAboutTraining": "; ".join(f"{name}: {text}" for name, text in _facts(stated).items()),
    }
    annotation = {
        "type": "Annotation",
        "spdxId": f"urn:uuid:{_uuid(stated, 'statement')}",
        **element,
        "annotationType": "other",
        "contentType": "application/json",
        "subject": identity,
        "statement": json.dumps(stated),
    }
    created = {
        "type": "CreationInfo",
        "@id": "_:creation",
        "specVersion": "3.0.1",
        "created": f"{end[:10]}T{end[11:19]}Z" if end.endswith(" UTC") else "1970-01-01T00:00:00Z",  # a clock not set
        "createdBy": [agent],
    }
    tool = {"type": "SoftwareAgent", "spdxId": agent, **element, "name": "zeus-core"}
    graph = [created, tool, package, annotation]
    return json.dumps({"@context": "https://spdx.org/rdf/3.0.1/spdx-context.jsonld", "@graph": graph}, indent=2)


def cyclonedx_text(stated: Mapping[str, Any]) -> str:
    """Return a bill of materials of the model alone, with the energy in its model card.

    Args:
        stated: The fields of the statement in JSON.

    Raises:
        UsageError: The energy is not known.
    """
    kilowatt_hours, grams = _kilowatt_hours(stated), stated["co2_eq_grams"]
    consumption = {
        "activity": stated["training_type"] if stated["training_type"] == "fine-tuning" else "training",
        "energyProviders": [],  # who sold it is not known
        "activityEnergyCost": {"value": kilowatt_hours["value"], "unit": "kWh"},
        **({"co2CostEquivalent": {"value": grams["value"] / _GRAMS_PER_TONNE, "unit": "tCO2eq"}} if grams else {}),
        "properties": [{"name": f"zeus-core:{name}", "value": text} for name, text in _facts(stated).items()],
    }
    card = {"considerations": {"environmentalConsiderations": {"energyConsumptions": [consumption]}}}
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "components": [{"type": "machine-learning-model", "name": _name(stated), "modelCard": card}],
    }
    return json.dumps(document, indent=2)


def _kilowatt_hours(stated: Mapping[str, Any]) -> Mapping[str, Any]:
    if stated["energy_kwh"] is None:
        raise UsageError(
            "some of the energy was lost, and this format has a place for the whole alone; --format markdown and json "
            "state the least that was used"
        )
    energy: Mapping[str, Any] = stated["energy_kwh"]
    return energy


def _facts(stated: Mapping[str, Any]) -> dict[str, str]:
    """Return what belongs to the number, as texts."""
    energy, grams = _kilowatt_hours(stated), stated["co2_eq_grams"]
    facts = _ends("energy", energy, "kWh") | {"confidence": str(stated["confidence"]), "method": stated["method"]}
    facts["boundary"] = "; ".join(stated["included"])
    facts["not included"] = "; ".join(f"{item['what']} ({item['why']})" for item in stated["excluded"])
    if grams:
        factor, pue = stated["emission_factor_g_per_kwh"], stated["pue"]
        facts |= _ends("CO2 equivalent", grams, "g")
        facts["emission factor"] = f"{factor} g/kWh, PUE {pue}: {stated['emission_factor_source']}"
    facts["hardware"] = stated["hardware"]
    return {**facts, **({"location": stated["location"]} if stated["location"] else {})}


def _ends(name: str, interval: Mapping[str, Any], unit: str) -> dict[str, str]:
    names = {"value": name, "low": f"least {name}", "high": f"most {name}"}
    return {f"{named} in {unit}": str(interval[end]) for end, named in names.items() if interval[end] is not None}


def _name(stated: Mapping[str, Any]) -> str:
    return ", ".join(run["name"] for run in stated["runs"])


def _uuid(stated: Mapping[str, Any], part: str) -> uuid.UUID:
    """Return an identifier that the same runs have again."""
    return uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([part, *sorted(str(run["run"]) for run in stated["runs"])]))
