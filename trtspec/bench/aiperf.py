"""AIPerf as what sends the requests."""
