"""Plain readers; a user's own `datasets` folder on the import path merges with this one."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
