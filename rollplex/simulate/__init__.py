"""A virtual clock for timetables: the same schedules as live, with costs instead of devices."""

from rollplex.simulate.job import Job as Job
from rollplex.simulate.simulate import Simulation as Simulation
from rollplex.simulate.simulate import simulate as simulate
