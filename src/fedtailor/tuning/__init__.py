"""The same number of trials for each method, judged on validation samples: fair settings for a comparison."""
