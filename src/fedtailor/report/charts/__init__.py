"""The report's figures as plain data for plotly.js: nothing is drawn here."""
