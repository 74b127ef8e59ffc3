from tests.report.conftest import make_run as make_run
