"""What an engine can ask of a client."""

from __future__ import annotations

from enum import StrEnum


class Work(StrEnum):
    """One kind of work; its value is the text that travels and appears in the log. `Work(text)` refuses any other text.

    >>> Work("fit+score").trains, Work.FIT_AND_SCORE.scores, Work.SCORE.changes_state
    (True, True, False)
    """

    HELLO = "hello"
    FIT = "fit"
    FIT_AND_SCORE = "fit+score"
    SCORE = "score"
    SYNC = "sync"
    SYNC_AND_SCORE = "sync+score"
    FINISH = "finish"

    # messages of a secure sum before and after the client trains
    ADVERTISE = "advertise"
    SHARE = "share"
    UNMASK = "unmask"

    # private states; no site serves these
    GET_STATE = "get_state"
    SET_STATE = "set_state"
    DROP_STATE = "drop_state"

    # only sites serve these
    DESCRIBE = "describe"
    SAVE_MODEL = "save"
    ONBOARD = "onboard"
    END = "end"

    @property
    def trains(self) -> bool:
        """Whether the client trains in a round."""
        return self in (Work.FIT, Work.FIT_AND_SCORE)

    @property
    def scores(self) -> bool:
        """Whether the outcome has a score."""
        return self in (Work.FIT_AND_SCORE, Work.SCORE, Work.SYNC_AND_SCORE)

    @property
    def computes(self) -> bool:
        """Whether the method is at work on samples."""
        return self.trains or self.scores or self.changes_state

    @property
    def sums(self) -> bool:
        """Whether it is a message of a secure sum."""
        return self in (Work.ADVERTISE, Work.SHARE, Work.UNMASK)

    @property
    def changes_state(self) -> bool:
        """Whether the method may change the client's private state."""
        return self.trains or self in (Work.SYNC, Work.SYNC_AND_SCORE, Work.FINISH)
