"""Losses and statistics: functions without learned parameters."""
