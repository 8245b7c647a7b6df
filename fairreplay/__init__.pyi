from fairreplay.api import capacity as capacity
from fairreplay.api import episodes as episodes
from fairreplay.api import ingest as ingest
from fairreplay.api import metrics as metrics
from fairreplay.api import replay as replay
from fairreplay.api import report as report
from fairreplay.api import sql as sql

__version__: str
