"""Measuring a store server: published workloads, the load program that drives them, its report."""
