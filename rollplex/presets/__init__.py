"""Published systems as mappings: from a mechanism to a timetable, pools, placement and allowed staleness."""

from rollplex.presets.preset import Effect as Effect
from rollplex.presets.preset import Preset as Preset
from rollplex.presets.systems import PRESETS as PRESETS
