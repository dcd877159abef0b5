"""The carbon intensity of the present, from Electricity Maps: the example of how to write a live source."""

from __future__ import annotations

import json
import logging
import os
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import replace
from datetime import datetime
from typing import Any

from zeus_core.electricity._recorded import RecordedSignal
from zeus_core.electricity.signal import SignalFacts, SignalPart, checked_period, converted_value
from zeus_core.errors import UsageError
from zeus_core.ports.background import Background, ThreadBackground
from zeus_core.validate import checked_one_of, shown

# Values are hourly: to ask more often gains nothing, and plans limit the number of requests.
_REFRESH_SECONDS = 900.0
_TIMEOUT_SECONDS = 10.0
_MOST_PERIODS = 24  # from a failure to the next try: six hours
_MAX_ANSWER_BYTES = 1_000_000  # the answer for 24 hours has about 6,000
# Room for values that are published late; a guess, not measured against the service.
_MAX_AGE_SECONDS = 3 * 3600.0
_KEPT_SECONDS = 15 * 86_400.0

_logger = logging.getLogger(__name__)

_Values = dict[float, float]
"""Values by their times, in seconds since 1970."""


class ElectricityMaps:
    """Carbon intensity of a zone from the API of Electricity Maps, version 3 (`carbon-intensity/history`).

    A thread in the background fetches the values of the last 24 hours, at once and then periodically. Nothing else
    waits for the network: until it answers, and where its values are more than three hours old, the average you state
    holds. A failure is logged once; the time between tries doubles after each, up to six hours.

    The values are those of the average of all plants of a zone, by their emissions over the whole life cycle.
    `facts.source` says how many of them the service has estimated, or that they are the random ones of a token for
    tests. The API is described at https://portal.electricitymaps.com/docs.

    Args:
        zone: The zone of the grid, such as "DE" or "US-CAL-CISO".
        average: g/kWh where no recent value is known.
        token: Your token for the API; None to take the environment variable ELECTRICITYMAPS_TOKEN.
        url: The API.
        background: Where requests are made; None for a thread.
        forecast_hours: Ask for the forecast of so many hours, too, which not every token may: 6, 24, 48 or 72.

    Raises:
        UsageError: An argument is wrong, or there is no token.
    """

    def __init__(
        self,
        zone: str,
        average: float,
        token: str | None = None,
        url: str = "https://api.electricitymaps.com/v3",
        background: Background | None = None,
        forecast_hours: int | None = None,
    ) -> None:
        self._zone, self._url, self._forecast_hours = zone, url, forecast_hours
        self._token = os.environ.get("ELECTRICITYMAPS_TOKEN", "") if token is None else token
        if not self._token.isascii() or not self._token.isprintable() or not self._token:
            raise UsageError("there is no token for Electricity Maps: set ELECTRICITYMAPS_TOKEN, or pass token=")
        if not url.startswith(("https://", "http://")):
            raise UsageError(f"url is {shown(url)}; it must begin with https://")
        checked_one_of("forecast_hours", forecast_hours, (None, 6, 24, 48, 72))
        source = f"Electricity Maps, {zone}, life cycle"
        self.facts: SignalFacts = SignalFacts.checked("g/kWh", source, average=average)
        """Its unit, source and basis."""
        self._arguments = (zone, average, token, url, None, forecast_hours)
        # The first forecast for each hour shows how good forecasts are so long before; the latest one is used.
        self._values, self._first_forecasts, self._forecasts = _Values(), _Values(), _Values()
        self._known: RecordedSignal | None = None
        self._is_closed = False
        self._has_forecast_failed = False
        self._failures, self._periods_to_wait = 0, 0
        background = ThreadBackground() if background is None else background
        background.soon(self._refresh)
        self._stop = background.repeatedly(self._refresh, _REFRESH_SECONDS)

    def __reduce__(self) -> Any:
        """Copy the arguments alone: a copy, as in the processes of a search by Ray, asks for itself."""
        return type(self), self._arguments

    def parts(self, begin_seconds: float, end_seconds: float) -> list[SignalPart]:
        """Return the parts of a period, from what is known now. See `Signal.parts`."""
        known = self._known
        if known is not None:
            return known.parts(begin_seconds, end_seconds)
        begin, end = checked_period(begin_seconds, end_seconds)
        return [SignalPart(begin, end, self.facts.average, is_stale=True)]

    def forecast(self, now_seconds: float, begin_seconds: float, end_seconds: float) -> list[SignalPart]:
        """Return what is forecast for a period, as known now. See `ForecastSignal.forecast`."""
        known = self._known
        return [] if known is None else known.forecast(now_seconds, begin_seconds, end_seconds)

    def close(self) -> None:
        """Make no more requests. The values that are known stay."""
        self._is_closed = True
        self._stop()

    def _refresh(self) -> None:
        """Runs in the background, once in each period."""
        self._periods_to_wait -= 1
        if self._is_closed or self._periods_to_wait > 0:
            return
        try:
            problem = self._refresh_forecast()
            self._learn(self._answer("history")["history"])
        except Exception as error:  # a server may answer anything
            self._failures += 1
            self._periods_to_wait = min(2**self._failures, _MOST_PERIODS)
            if self._failures == 1:
                then = f"the values known until now hold for three hours, and then {self.facts.average:g} g/kWh"
                self._warn("carbon intensity", self._problem(error), then)
            return
        if self._failures:
            _logger.info("Electricity Maps answers again")
        if problem is not None and not self._has_forecast_failed:
            self._warn("forecast", problem, "decisions are made by the past alone")
        self._failures, self._has_forecast_failed = 0, problem is not None

    def _refresh_forecast(self) -> str | None:
        """Ask for the forecast if it is wanted, and return what was wrong: not every token may ask for it."""
        if self._forecast_hours is None:
            return None
        try:
            latest = _values_of(self._answer("forecast", horizonHours=str(self._forecast_hours))["forecast"])
        except Exception as error:
            return self._problem(error)
        self._first_forecasts = _kept(latest | self._first_forecasts)
        self._forecasts = _kept(self._first_forecasts | latest)
        return None

    def _problem(self, error: Exception) -> str:
        """Return what is wrong with an answer, and the way out: text alone, as the error holds a socket open."""
        if isinstance(error, urllib.error.HTTPError) and error.code in (401, 403):
            source = "ELECTRICITYMAPS_TOKEN" if self._arguments[2] is None else "token= (not ELECTRICITYMAPS_TOKEN)"
            return f"HTTP {error.code}: the token of {source} may not ask for the zone {self._zone}"
        if isinstance(error, urllib.error.HTTPError):
            return f"HTTP {error.code} {error.reason} from {self._url}"
        if isinstance(error, json.JSONDecodeError):
            return f"the answer of {self._url} is no JSON, as the page of a proxy: {error}"
        if isinstance(error, KeyError | TypeError | AttributeError):
            return f"the answer of {self._url} is not as its version 3 describes it: {type(error).__name__}: {error}"
        return f"{type(error).__name__}: {error}"

    def _warn(self, what: str, problem: str, then: str) -> None:
        if not self._is_closed:
            _logger.warning(
                "no %s from Electricity Maps for %s (%s): %s; it is tried again", what, self._zone, problem, then
            )

    def _answer(self, what: str, **more: str) -> Any:
        query = urllib.parse.urlencode({"zone": self._zone, **more})
        request = urllib.request.Request(
            f"{self._url}/carbon-intensity/{what}?{query}", headers={"auth-token": self._token}
        )
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=_TIMEOUT_SECONDS) as response:
            return json.loads(response.read(_MAX_ANSWER_BYTES))

    def _learn(self, entries: Any) -> None:
        """Add the values of an answer, and say in the facts how many of them are estimates."""
        latest = _values_of(entries)
        self._values = _kept(self._values | latest)
        if self._values:
            self._known = self._recorded(self._values, self._recorded(self._forecasts) if self._forecasts else None)
        methods = [str(entry.get("estimationMethod")) for entry in entries if entry.get("isEstimated")]
        note = f", {len(methods)} of {len(latest)} values estimated" if methods else ""
        if any("SANDBOX" in method for method in methods):
            note = ", random values of a token for tests"
            if not self.facts.source.endswith(note):
                _logger.warning("the values of Electricity Maps for %s are random: its token is for tests", self._zone)
        self.facts = replace(self.facts, source=f"Electricity Maps, {self._zone}, life cycle{note}")

    def _recorded(self, values: _Values, forecast: RecordedSignal | None = None) -> RecordedSignal:
        return RecordedSignal(
            list(values),
            list(values.values()),
            "g/kWh",
            average=self.facts.average,
            max_age_seconds=_MAX_AGE_SECONDS,
            forecast=forecast,
            forecast_hours=self._forecast_hours or 0,
        )


def _values_of(entries: Any) -> _Values:
    """Return the values of an answer, without hours that are not published yet. Raises anything if it is not one."""
    return {
        datetime.fromisoformat(entry["datetime"]).timestamp(): converted_value(
            "carbonIntensity", entry["carbonIntensity"], "g/kWh"
        )
        for entry in entries
        if entry["carbonIntensity"] is not None
    }


def _kept(values: _Values) -> _Values:
    """Return the values of the last days, in the order of time."""
    oldest = max(values, default=0.0) - _KEPT_SECONDS
    return {seconds: values[seconds] for seconds in sorted(values) if seconds >= oldest}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Goes nowhere else: the token would be sent along."""

    def redirect_request(self, *_: Any) -> None:
        """Refuse."""
