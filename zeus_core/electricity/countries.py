"""The yearly carbon intensity of the electricity of countries: a factor where nothing better is known."""

from __future__ import annotations

from zeus_core.electricity.signal import ConstantSignal
from zeus_core.errors import UsageError

_SOURCE = "Ember, Yearly Electricity Data, CC BY 4.0"
# Grams of CO2 equivalent per kWh generated in a country, over the life of its power plants. Those of 2024 are as in Our
# World in Data (carbon-intensity-electricity, 2025). Those of 2022 and 2023 are as in the data of CO2.js of May 2024
# (average-intensities.json). Both have them from Ember.
_BY_YEAR = {
    2024: "AT 103, AU 552, BE 118, CA 175, CH 37, CZ 414, DE 344, DK 143, EE 341, FI 72, FR 44, GB 211, NL 253, NO 31, "
    "PL 615, SE 36, US 384",
    2023: "BG 335, CY 534, ES 174, GR 337, HR 205, HU 204, IE 291, IT 331, LT 160, LU 105, LV 123, MT 459, PT 166, "
    "RO 241, RS 636, SI 231, SK 117, TR 465",
    2022: "AE 561, AR 395, BR 106, CL 354, CN 586, HK 700, ID 676, IL 583, IN 705, IS 28, JP 513, KR 442, MX 475, "
    "MY 606, NZ 111, QA 603, SA 707, SG 474, TH 561, TW 640, UA 260, VN 410, ZA 730",
}


def yearly_intensity(country: str) -> ConstantSignal:
    """Return the mean carbon intensity of a country, by its code of two letters (ISO 3166), of the latest year known.

    Raises:
        UsageError: It is not known.
    """
    known: dict[str, tuple[float, int]] = {}
    for year, text in _BY_YEAR.items():
        for code, grams in map(str.split, text.split(",")):
            known[code] = float(grams), year
    if country not in known:
        raise UsageError(f"there is no yearly intensity of {country}; known are {', '.join(sorted(known))}")
    mean, year = known[country]
    return ConstantSignal(mean, "g/kWh", f"{country}, mean of {year}: {_SOURCE}")
