"""Commands on stores of images."""

from __future__ import annotations

from tintype.cli.derive import command
from tintype.cli.shared import group

data_app = group("data", "Import your own images into a store, and inspect it.")

command(data_app, "import", "data:import_images", "data:Import")
command(data_app, "presets", "data:data_presets", "presets:Presets")
command(data_app, "export", "data:export_store", "data:Export")
command(data_app, "recaption", "data:recaption_store", "data:Recaptioning")
command(data_app, "shapes", "data:choose_shapes", "data:ShapeSetting")
command(data_app, "show", "data:show_store", "data:StoreFacts")
command(data_app, "upgrade", "data:upgrade_store", "data:Upgrade")
command(data_app, "inspect", "data:inspect_store", "data:InspectedStore")
