"""How frames get from one end to the other: an in-process hub, or MQTT."""
