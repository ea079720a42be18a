"""What a killed run goes on with, and a step that is trained once more."""
