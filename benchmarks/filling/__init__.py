"""Large stores in minutes: records as a real run writes them, made from templates."""
