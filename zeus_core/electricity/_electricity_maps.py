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
from zeus_core.electricity.signal import SignalFacts, SignalPart, checked_period, checked_value
from zeus_core.errors import UsageError
from zeus_core.ports.background import Background, ThreadBackground
from zeus_core.ports.time_source import TimeSource, checked_time_source
from zeus_core.validate import checked_number, checked_one_of, checked_text, shown

# Values are hourly: to ask more often than this gains nothing, and plans limit the number of requests.
_MIN_REFRESH_SECONDS = 120.0
_TIMEOUT_SECONDS = 10.0
_MAX_BACKOFF_SECONDS = 6 * 3600.0
_MAX_ANSWER_BYTES = 1_000_000  # the answer for 24 hours has about 6,000
# Room for values that are published late; a guess, not measured against the service.
_MAX_AGE_SECONDS = 3 * 3600.0
_KEPT_SECONDS = 15 * 86_400.0

_logger = logging.getLogger(__name__)


class ElectricityMaps:
    """Carbon intensity of a zone from the API of Electricity Maps, version 3 (`carbon-intensity/history`).

    A thread in the background fetches the values of the last 24 hours, at once and then periodically. Nothing else
    waits for the network: until it answers, and where its values are more than three hours old, the average you state
    holds. A failure is logged once; the time between tries doubles after each, up to six hours.

    The values are those of the average of all plants of a zone, by their emissions over the whole life cycle. Those
    that the service has estimated are marked as such, and `facts.source` says how many they are, or that they are the
    random ones of a token for tests. The API is described at https://portal.electricitymaps.com/docs.

    Args:
        zone: The zone of the grid, such as "DE" or "US-CAL-CISO".
        average: g/kWh where no recent value is known.
        token: Your token for the API; None to take the environment variable ELECTRICITYMAPS_TOKEN.
        refresh_seconds: The time between two requests.
        url: The API.
        background: Where requests are made; None for a thread.
        time_source: Tells when the next request is due.
        forecast_hours: Ask for the forecast of so many hours, too, which not every token may: 6, 24, 48 or 72.

    Raises:
        UsageError: An argument is wrong, or there is no token.
    """

    def __init__(
        self,
        zone: str,
        average: float,
        token: str | None = None,
        refresh_seconds: float = 900.0,
        url: str = "https://api.electricitymaps.com/v3",
        background: Background | None = None,
        time_source: TimeSource | None = None,
        forecast_hours: int | None = None,
    ) -> None:
        self._zone = checked_text("zone", zone, 'the name of a zone, such as "DE"')
        self._token = os.environ.get("ELECTRICITYMAPS_TOKEN", "") if token is None else checked_text("token", token)
        if not self._token.isascii() or not self._token.isprintable() or not self._token:
            raise UsageError("there is no token for Electricity Maps: set ELECTRICITYMAPS_TOKEN, or pass token=")
        self._refresh_seconds = checked_number(
            "refresh_seconds", refresh_seconds, _MIN_REFRESH_SECONDS, 86_400.0, "seconds, from 120 to one day"
        )
        self._url = checked_text("url", url)
        if not self._url.startswith(("https://", "http://")):
            raise UsageError(f"url is {shown(url)}; it must begin with https://")
        self._source = f"Electricity Maps, {zone}, life cycle"
        self.facts: SignalFacts = SignalFacts.checked("g/kWh", self._source, "average", average)
        """Its unit, source and basis."""
        self._forecast_hours = (
            None if forecast_hours is None else checked_one_of("forecast_hours", forecast_hours, (6, 24, 48, 72))
        )
        self._has_forecast_failed = False
        self._values: dict[float, float] = {}
        self._estimates: dict[float, str] = {}  # how each value was estimated that was
        # The first one for each hour shows how good forecasts are so long before; the latest ones are used.
        self._first_forecasts: dict[float, float] = {}
        self._forecasts: dict[float, float] = {}
        self._known: RecordedSignal | None = None
        self._time_source = checked_time_source(time_source)
        self._is_closed = False
        self._failures = 0
        self._next_try_seconds = -1.0
        self._arguments = (zone, average, token, refresh_seconds, url, None, None, forecast_hours)
        background = ThreadBackground() if background is None else background
        background.soon(self._refresh)
        self._stop = background.repeatedly(self._refresh, self._refresh_seconds)

    def __reduce__(self) -> Any:
        """Copy the arguments alone: a copy, as in the processes of a search by Ray, asks for itself."""
        return type(self), self._arguments

    def parts(self, begin_seconds: float, end_seconds: float) -> list[SignalPart]:
        """Return the parts of a period, from what is known now. See `Signal.parts`."""
        known = self._known
        if known is not None:
            return known.parts(begin_seconds, end_seconds)
        begin, end = checked_period(begin_seconds, end_seconds)
        return [SignalPart(begin, end, self.facts.average, None)]

    def forecast(self, now_seconds: float, begin_seconds: float, end_seconds: float) -> list[SignalPart]:
        """Return what is forecast for a period, as known now. See `ForecastSignal.forecast`."""
        known = self._known
        return [] if known is None else known.forecast(now_seconds, begin_seconds, end_seconds)

    def close(self) -> None:
        """Make no more requests. The values that are known stay."""
        self._is_closed = True
        self._stop()

    def _refresh(self) -> None:
        """Runs in the background."""
        now = self._time_source.now()
        if self._is_closed or now < self._next_try_seconds:
            return
        try:
            no_forecast = self._refresh_forecast()
            self._learn(self._answer("history"))
        except Exception as error:  # a server may answer anything
            self._failures += 1
            wait_seconds = min(self._refresh_seconds * 2**self._failures, _MAX_BACKOFF_SECONDS)
            # A little less than the whole wait, so that the request falls on a period that is a hair early.
            self._next_try_seconds = now + 0.9 * wait_seconds
            if self._failures == 1 and not self._is_closed:
                _logger.warning(
                    "no carbon intensity from Electricity Maps for %s (%s): the values known until now hold for "
                    "three hours, and then %g g/kWh; it is tried again",
                    *(self._zone, self._problem(error), self.facts.average),
                )
        else:
            if no_forecast is not None and not self._has_forecast_failed and not self._is_closed:
                _logger.warning(
                    "no forecast from Electricity Maps for %s (%s): decisions are made by the past alone; it is tried "
                    "again",
                    *(self._zone, no_forecast),
                )
            self._has_forecast_failed = no_forecast is not None
            if self._failures:
                _logger.info("Electricity Maps answers again")
            self._failures, self._next_try_seconds = 0, -1.0

    def _problem(self, error: Exception) -> str:
        """Return what is wrong with an answer, and the way out."""
        if isinstance(error, urllib.error.HTTPError):
            if error.code in (401, 403):
                source = "ELECTRICITYMAPS_TOKEN" if self._arguments[2] is None else "token= (not ELECTRICITYMAPS_TOKEN)"
                return f"HTTP {error.code}: the token of {source} may not ask for the zone {self._zone}"
            return f"HTTP {error.code} {error.reason} from {self._url}"
        if isinstance(error, json.JSONDecodeError):
            return f"the answer of {self._url} is no JSON, as the page of a proxy: {error}"
        if isinstance(error, KeyError | TypeError | AttributeError):
            return f"the answer of {self._url} is not as its version 3 describes it: {type(error).__name__}: {error}"
        return f"{type(error).__name__}: {error}"

    def _refresh_forecast(self) -> str | None:
        """Return why there is no forecast, though one was asked for."""
        if self._forecast_hours is None:
            return None
        try:
            latest = self._values_of(self._answer("forecast", horizonHours=str(self._forecast_hours))["forecast"])
        except Exception as error:  # as of a token that may not ask for it; what happened is known without it
            return self._problem(error)
        oldest = max(latest, default=0.0) - _KEPT_SECONDS
        first = {**latest, **self._first_forecasts}
        self._first_forecasts = {seconds: first[seconds] for seconds in sorted(first) if seconds >= oldest}
        self._forecasts = dict(sorted({**self._first_forecasts, **latest}.items()))
        return None

    def _answer(self, what: str, **more: str) -> Any:
        query = urllib.parse.urlencode({"zone": self._zone, **more})
        request = urllib.request.Request(
            f"{self._url}/carbon-intensity/{what}?{query}", headers={"auth-token": self._token}
        )
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=_TIMEOUT_SECONDS) as response:
            return json.loads(response.read(_MAX_ANSWER_BYTES))

    def _learn(self, answer: Any) -> None:
        """Add the values of an answer. Raises anything if it is no such answer."""
        values = {**self._values, **self._values_of(answer["history"], self._estimates)}
        oldest = max(values, default=0.0) - _KEPT_SECONDS
        self._values = {seconds: values[seconds] for seconds in sorted(values) if seconds >= oldest}
        self._estimates = {seconds: how for seconds, how in self._estimates.items() if seconds in self._values}
        if self._values:
            self._known = self._recorded(self._values, self._recorded(self._forecasts) if self._forecasts else None)
        note = f", {len(self._estimates)} of {len(self._values)} values estimated" if self._estimates else ""
        if any("SANDBOX" in how for how in self._estimates.values()):
            note = ", random values of a token for tests"
            if not self.facts.source.endswith(note):
                _logger.warning("the values of Electricity Maps for %s are random: its token is for tests", self._zone)
        self.facts = replace(self.facts, source=self._source + note)

    def _recorded(self, values: dict[float, float], forecast: RecordedSignal | None = None) -> RecordedSignal:
        return RecordedSignal(
            list(values),
            list(values.values()),
            "g/kWh",
            average=self.facts.average,
            max_age_seconds=_MAX_AGE_SECONDS,
            forecast=forecast,
            forecast_hours=self._forecast_hours or 0,
            estimated_seconds=list(self._estimates),
        )

    def _values_of(self, entries: Any, estimates: dict[float, str] | None = None) -> dict[float, float]:
        """Return the values of an answer by their times, and add how they were estimated, if they were.

        Raises anything if they are no such values.
        """
        values = {}
        for entry in entries:
            value = entry["carbonIntensity"]
            if value is not None:  # as for an hour that is not published yet
                moment = datetime.fromisoformat(entry["datetime"].replace("Z", "+00:00"))
                values[moment.timestamp()] = checked_value("carbonIntensity", value, self.facts)
                if estimates is not None:
                    estimates.pop(moment.timestamp(), None)
                    if entry.get("isEstimated"):
                        estimates[moment.timestamp()] = str(entry.get("estimationMethod"))
        return values


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Goes nowhere else: the token would be sent along."""

    def redirect_request(self, *_: Any) -> None:
        """Refuse."""
