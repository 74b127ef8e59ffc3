"""What a deployment has beside the config of its run."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from fedtailor.cli.deploy import app
from fedtailor.deploy.deploy_folder import DeployFolder
from fedtailor.deploy.settings import DeploySettings, with_overrides


@pytest.mark.parametrize(
    ("words", "share"), [(["clients=3"], 0.5), (["clients=2"], 1.0), (["clients=4", "max_share=0.8"], 0.8)]
)
def test_a_federation_made_for_real_sites_caps_what_one_of_three_or_more_can_weigh(tmp_path, words, share):
    result = CliRunner().invoke(app, ["init", str(tmp_path / "new"), "method=fedrep", *words])
    assert result.exit_code == 0, result.output
    assert DeployFolder.open(tmp_path / "new").settings()[0].max_share == share


def test_elsewhere_weights_are_left_alone():
    assert DeploySettings().max_share == with_overrides({}, ["data=digits", "clients=4"])[0].max_share == 1.0
