"""An image that Pillow reads with a plug-in only, and such a plug-in, if only in one colour."""

HEIC = b"\0\0\0\x18ftypheic" + bytes(20)
PLUGIN = """
from PIL import Image
def register_heif_opener():
    def opened(file, name):
        image = Image.new("RGB", (3, 2), (0, 0, 255))
        image.format = "HEIF"
        return image
    Image.register_open("HEIF", opened, lambda start: start[4:12] == b"ftypheic")
"""
