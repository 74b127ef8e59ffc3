#!/bin/sh
# Images in images/CLIENT/CLASS: each client trains on its own folder. With CLASS alone, leave out client_folders and say clients=…
set -e
python make_images.py
fedtailor data describe data=folder data.path=images data.client_folders=true
fedtailor run method=fedper data=folder data.path=images data.client_folders=true rounds=10 epochs=5 lr=0.1 seed=0 -o runs/shapes
fedtailor show runs/shapes
fedtailor predict runs/shapes --client jade --data new -o predictions.csv
