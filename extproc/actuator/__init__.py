"""How is a recommendation carried out where no platform does? One server at a time, drained before it is stopped."""
