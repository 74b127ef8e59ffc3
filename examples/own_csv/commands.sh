#!/bin/sh
# Three hospitals in one table, from the first run to a model that works without FedTailor. docs/your-data.md explains each option.
set -e
python make_patients.py
fedtailor run patients.toml method=fedrep rounds=10 -o runs/fedrep
fedtailor show runs/fedrep --clients
fedtailor compare local fedavg fedrep patients.toml rounds=10 -o runs/comparison
fedtailor report runs/comparison -o report.html
fedtailor predict runs/fedrep --client north --data new.csv -o predictions.csv
fedtailor export runs/fedrep --client north -o models
