"""Monitors a running server: its metrics, a dashboard for Grafana, alert rules for Prometheus."""
