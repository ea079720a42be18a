"""Where an instance of SWE-bench is worked on, and how a patch is judged."""
