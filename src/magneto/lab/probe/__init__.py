"""What a recipe's training will do: measured in a short run, judged, explained."""
