"""The agents, one file each: the pure update above, the class that keras-rl's users know below."""
