"""The roles a member can have in its group."""

import enum


class StateType(enum.IntEnum):
    FOLLOWER = 0
    CANDIDATE = 1
    LEADER = 2
    PRE_CANDIDATE = 3


ROLE_NAMES = ("StateFollower", "StateCandidate", "StateLeader", "StatePreCandidate")
