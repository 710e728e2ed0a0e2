"""Integrations with training frameworks, one module each. Import the module of the framework you use."""
