"""One file per system: knows drivers and formats; knows neither modes nor plans."""
