"""Accounts of a training: strategies of hypothesis for them, and those in journals."""

import json

from hypothesis import strategies as st

from zeus_core.codec import decode
from zeus_core.events import Activity
from zeus_core.measurement import DeviceEnergy
from zeus_core.training.account import Account
from zeus_core.training.activities.tally import Tally
from zeus_core.training.charges.charging import Charge

amounts = st.floats(0, 1e9)
tallies = st.builds(
    Tally,
    amounts,
    st.builds(DeviceEnergy, amounts, amounts, st.sampled_from(["counted", "integrated", "estimated"])),
    st.sampled_from([0.0, 1.5]),
)
charges = st.builds(Charge, st.floats(-1e6, 1e9), amounts, amounts, amounts, amounts)
accounts = st.builds(
    Account,
    tallies,
    st.dictionaries(st.sampled_from(Activity), tallies),
    tallies,
    st.integers(0, 10**9),
    st.integers(0, 10**12),
    tallies,
    st.dictionaries(st.sampled_from(["g", "EUR"]), charges),
    st.integers(0, 3),
    st.none() | amounts,
)


def account_of(line):
    """Return the account in a line of a journal, which leaves out what has its default."""
    return decode(Account, json.loads(line)["account"])
